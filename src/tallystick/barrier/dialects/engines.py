"""The database engines that hold barrier, inbox and outbox tables."""

from tallystick.barrier.dialects.mysql import MySQL
from tallystick.barrier.dialects.postgresql import PostgreSQL, PreparedPostgreSQL
from tallystick.barrier.dialects.sqlite import Sqlite

SQLITE = Sqlite()
POSTGRESQL = PostgreSQL()
PREPARED_POSTGRESQL = PreparedPostgreSQL()
MYSQL = MySQL()
