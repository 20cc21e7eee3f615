-- The brokers that share stores on PostgreSQL, and the stores that they share. Beside the tables of the stores themselves
-- (postgresql.sql), whose fences say who owns which. Made by `tallystick store create`, or by the first broker; safe to run again.

-- The stores of the cluster: their numbers, and the ids that they were given for ever. Changed only when another store is copied
-- to a number (`tallystick store copy`).
create table if not exists tallystick_cluster_store (
    store integer not null primary key,
    id text not null unique
);

-- The brokers. Each rewrites its own row a few times a second and reads all others: a beat that no longer grows is all
-- that the others need to know. Pages of few rows, as with the fence: the next versions of a row need room.
create table if not exists tallystick_cluster_member (
    id text not null primary key,
    name text not null,
    url text not null,
    grpc_url text not null,
    beat bigint not null,
    leaving boolean not null
) with (fillfactor = 10);

-- What the brokers alone may know: the key that they sign with when one of them tells another who is asking. Drawn by
-- whoever needs it first.
create table if not exists tallystick_cluster_secret (
    name text not null primary key,
    secret bytea not null
);
