"""Building verifiers from settings, and what importing the package costs."""

import subprocess
import sys
from inspect import ismodule

import pytest

import ratchet.verifiers
from ratchet.config import MathPairsVerifier, MathVerifier, PythonVerifier
from ratchet.errors import InvalidSetting
from ratchet.run.records import Prompt
from ratchet.verifiers import make_verifier

PROMPT = Prompt(id=1, messages=({"role": "user", "content": "?"},), ground_truth="7")


def test_math_pairs_reports_whether_the_number_is_written_exactly():
    verifier = make_verifier(MathPairsVerifier())
    assert verifier.grade("7", PROMPT).parts == {"accuracy_strict": 1.0}
    assert verifier.grade("7.0", PROMPT).parts == {"accuracy_strict": 0.0}
    assert verifier.grade("", PROMPT).parts == {"accuracy_strict": 0.0}


def test_math_reads_the_answer_tag_only_when_told_to():
    text = r"<answer>$7$</answer> I needed $3$ steps"
    for prefer_answer_tag in (True, False):
        verifier = make_verifier(MathVerifier(), prefer_answer_tag=prefer_answer_tag)
        assert verifier.grade(text, PROMPT).correctness == float(prefer_answer_tag)
        verifier.close()


def test_a_function_goes_with_the_python_kind_alone():
    with pytest.raises(InvalidSetting, match="verifier=function"):
        make_verifier(PythonVerifier(name="exact"))
    with pytest.raises(InvalidSetting, match="math_pairs"):
        make_verifier(MathPairsVerifier(), function=lambda answer, ground_truth: 1.0)


def test_importing_the_package_loads_neither_sympy_nor_torch():
    code = (
        "import sys, ratchet.verifiers\n"
        "sys.exit(','.join(sys.modules.keys() & {'torch', 'transformers', 'sympy', 'math_verify', 'numpy'}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_worker_loads_nothing_heavy_but_sympy():
    # Nor pydantic, for a quick start.
    code = (
        "import sys, ratchet.verifiers.math_equality\n"
        "sys.exit(','.join(sys.modules.keys() & {'torch', 'numpy', 'pydantic', 'regex'}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_the_package_offers_is_there():
    # A submodule of the same name would hide one.
    assert not [name for name in ratchet.verifiers.__all__ if ismodule(getattr(ratchet.verifiers, name))]
