"""Conversions of KV between element formats, on the way from prefill to decode: what is kept, what is lost, how many bytes.

`stored` says how a tensor lies in memory, `convert` rewrites one format as another, `codec` names a pair of formats with its wire
bytes and error bound, `compress` takes out redundancy without loss. Arrays are numpy's; docs/codecs.md has the table of losses.
"""
