"""The API keeps to its own description, whatever is sent: schemathesis makes the requests."""

import schemathesis
from hypothesis import HealthCheck, settings

from loopscale.app.server import create_app

schema = schemathesis.openapi.from_dict(create_app().openapi())
# A description cannot say that a text is a sweep, or that two fields go together: what fits it may still be refused.
TOO_MUCH = [schemathesis.checks.positive_data_acceptance]


@schema.parametrize()
@settings(max_examples=10, suppress_health_check=list(HealthCheck))
def test_no_request_breaks_the_api_or_its_description(case, address):
    case.call_and_validate(base_url=address, excluded_checks=TOO_MUCH)
