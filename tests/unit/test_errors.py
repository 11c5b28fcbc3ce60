from diptych.errors import Finding, InvalidInput, did_you_mean


def test_invalid_input_carries_every_finding():
    error = InvalidInput([Finding("a.csv:3", "isl is -1", "a count above zero"), Finding("--rate", "is NaN")])
    assert len(error.findings) == 2
    assert str(error) == "a.csv:3: isl is -1; expected a count above zero\n--rate: is NaN"


def test_did_you_mean_ignores_case_and_lists_few():
    assert did_you_mean("h100-sxm", ["H100-SXM-80GB", "L4"]) == "did you mean H100-SXM-80GB?"
    assert did_you_mean("zzz", ["A", "B"]) == "known: A, B"
