-- Tallystick's shared stores on PostgreSQL. Made by `tallystick store create`, or by the first broker; safe to run again.
-- A store is a number; the tables hold all stores of a database.

-- The fence: who owns a store (epoch, owner), and how many units were written to it. Every write begins by updating this
-- row, and changes nothing if the row says something else: so the row's lock puts all writers of a store into one line.
-- One row a store, rewritten with every unit. Pages of few rows leave room for the next versions of it, which then need
-- no entry in the index and are cleared away by whoever comes next, without a vacuum.
create table if not exists tallystick_store_fence (
    store integer not null primary key,
    epoch bigint not null,
    unit bigint not null,
    owner text not null
) with (fillfactor = 10);

-- The areas, a table each: bytes in order of their keys. They age differently, and a vacuum of one that changes all the
-- time must not walk through another that holds the messages of a month. One table for all of them was slower by a
-- third, too: versions of rows no longer fit into the page of the one before.
-- Values are stored as they are: to compress chunks took more of the writer's time than their pages do.

-- Transactions: each is rewritten once, when its outcome (a short tombstone) takes the place of its messages, in the same
-- page and without a new entry in the index. What is dead is then half of the table, so it is cleaned before that.
create table if not exists tallystick_store_tx (
    store integer not null,
    key bytea not null,
    value bytea not null,
    primary key (store, key)
) with (autovacuum_vacuum_scale_factor = 0.1, toast.autovacuum_vacuum_scale_factor = 0.1);

-- Queues: written once, read in order, deleted from the head.
create table if not exists tallystick_store_log (
    store integer not null,
    key bytea not null,
    value bytea not null,
    primary key (store, key)
);

-- Lines, leases, cursors, counters: small rows that come and go all the time. The table stays as small as what is alive
-- only if it is cleaned often, which costs little because it is small: after 5,000 dead rows and 2 % of the others, and
-- without the pauses that spare a disk from the vacuum of a large table.
create table if not exists tallystick_store_index (
    store integer not null,
    key bytea not null,
    value bytea not null,
    primary key (store, key)
) with (
    fillfactor = 80,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

-- Large bodies in columns: written once, read by key, deleted when their topic is trimmed.
create table if not exists tallystick_store_body (
    store integer not null,
    key bytea not null,
    value bytea not null,
    primary key (store, key)
);

alter table tallystick_store_tx alter column value set storage external;
alter table tallystick_store_log alter column value set storage external;
alter table tallystick_store_index alter column value set storage external;
alter table tallystick_store_body alter column value set storage external;
