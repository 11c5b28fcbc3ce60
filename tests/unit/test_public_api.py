import inspect

import diptych as dp


def test_the_public_names_are_sorted_complete_and_documented():
    loaded = {name for name, value in vars(dp).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert loaded <= set(dp.__all__)
    assert sorted(dp.__all__, key=lambda name: (not name.isupper(), name[0].islower(), name)) == dp.__all__
    for name in dp.__all__:
        assert (getattr(dp, name).__doc__ or "").strip(), name
