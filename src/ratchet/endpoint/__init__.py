"""Asking a model behind an OpenAI-compatible endpoint, over the network, for answers to a benchmark's questions.

Knows questions, answers and tokens; neither verifiers nor files. Loads the ``openai`` library when a request is made.
"""

from ratchet.endpoint.asking import (
    ENDPOINTS_OWN,
    EndpointAnswer,
    EndpointFailure,
    EndpointRequest,
    extra_sent,
    failure_of,
    is_of_endpoint,
    sampling_sent,
)
from ratchet.endpoint.client import EndpointClient
from ratchet.endpoint.connection import read_key
from ratchet.endpoint.cost import cost_of, cost_of_questions
from ratchet.endpoint.probing import probe

__all__ = [
    "ENDPOINTS_OWN",
    "EndpointAnswer",
    "EndpointClient",
    "EndpointFailure",
    "EndpointRequest",
    "cost_of",
    "cost_of_questions",
    "extra_sent",
    "failure_of",
    "is_of_endpoint",
    "probe",
    "read_key",
    "sampling_sent",
]
