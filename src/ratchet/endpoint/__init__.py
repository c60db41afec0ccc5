"""Asking a model behind an OpenAI-compatible endpoint, over the network, for answers to a benchmark's questions.

Knows questions, answers and tokens; neither verifiers nor files. Loads the ``openai`` library when a request is made.
"""

from ratchet.endpoint.client import EndpointClient
from ratchet.endpoint.connection import read_key
from ratchet.endpoint.endpoint_requests import (
    ENDPOINTS_OWN,
    EndpointAnswer,
    EndpointFailure,
    EndpointRequest,
    extra_sent,
    sampling_sent,
)
from ratchet.endpoint.probing import probe

__all__ = [
    "ENDPOINTS_OWN",
    "EndpointAnswer",
    "EndpointClient",
    "EndpointFailure",
    "EndpointRequest",
    "extra_sent",
    "probe",
    "read_key",
    "sampling_sent",
]
