"""How Alembic runs our migrations: on the connection that it is handed, in that connection's transaction."""

from alembic import context

from ratchet.store.schema import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite changes a table by making a new one
)
context.run_migrations()
