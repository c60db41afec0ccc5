"""The tables of the first release. A new database gets those of ``schema.py`` at once, so nothing is left to do here.

Later migrations change what a database of this one has. Of what was before it see ``earlier_tables.py``.
"""

revision = "0010"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Do nothing."""
