"""What each process of a test runs first."""

import lean  # noqa: F401
import registering  # noqa: F401
