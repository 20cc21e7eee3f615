-- The brokers that share stores on PostgreSQL, and the stores that they share. Beside the tables of the stores themselves
-- (postgresql.sql), whose fences say who owns which. Made by `tallystick store create`, or by the first broker; safe to run again.

-- The stores of the cluster: their numbers, and the ids that they were given for ever. Changed only when another store is copied
-- to a number (`tallystick store copy`).
create table if not exists tallystick_cluster_store (
    store integer not null primary key,
    id text not null unique
);

-- The brokers. The column `beat` is for brokers of earlier versions, see below.
create table if not exists tallystick_cluster_member (
    id text not null primary key,
    name text not null,
    url text not null,
    grpc_url text not null,
    beat bigint not null,
    leaving boolean not null
) with (fillfactor = 10);

-- The beats of the brokers: each adds a row a few times a second, deletes one that is older, and reads the newest of all
-- others: a beat that no longer grows is all that the others need to know. A row that was updated instead took a look of
-- the brokers from 0.1 to 12 ms in three hours in which a snapshot was held. Beside a broker of an earlier version, which
-- adds no rows here, each writes its beat to its row in tallystick_cluster_member as well.
create table if not exists tallystick_cluster_beat (
    id text not null,
    beat bigint not null,
    primary key (id, beat)
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- What the brokers alone may know: the key that they sign with when one of them tells another who is asking. Drawn by
-- whoever needs it first.
create table if not exists tallystick_cluster_secret (
    name text not null primary key,
    secret bytea not null
);
