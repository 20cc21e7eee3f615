-- Tallystick's shared stores on PostgreSQL. Made by `tallystick store create`, or by the first broker; safe to run again.
-- A store is a number; the tables hold all stores of a database.

-- The fence: who owns a store (epoch, owner), and how many of its units were moved to the tables. One row a store. Every
-- write begins by locking this row, and changes nothing if the row says something else: so the lock puts all writers of
-- a store into one line.
create table if not exists tallystick_store_fence (
    store integer not null primary key,
    epoch bigint not null,
    unit bigint not null,
    owner text not null
) with (fillfactor = 10);

-- The units since: a row each, under its number, with the keys of tallystick_store_index that nearly every unit rewrites
-- (counters, ends of queues, cursors) and their values. A row that is updated with every unit grows a version with each,
-- and a snapshot that is held elsewhere (a dump, a forgotten session) keeps them all: a unit took 0.4 ms at first and 2.4
-- after 75 s. Rows that are added and deleted by number are never walked over. A vacuum as for tallystick_store_index.
create table if not exists tallystick_store_unit (
    store integer not null,
    unit bigint not null,
    keys bytea[] not null,
    vals bytea[] not null,
    primary key (store, unit)
) with (
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

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

-- Only where it is not so yet: the change would wait for whatever reads the table, and all brokers would wait behind it.
do $$
declare
    area text;
begin
    foreach area in array array['tx', 'log', 'index', 'body'] loop
        if exists(
            select from pg_attribute where attrelid = ('tallystick_store_' || area)::regclass
            and attname = 'value' and attstorage <> 'e'
        ) then
            execute format('alter table tallystick_store_%s alter column value set storage external', area);
        end if;
    end loop;
end $$;

-- An update of the fence that keeps its number moves the values of the units' rows to tallystick_store_index and counts the
-- units. A claim is one, by a broker of any version: so each owner finds everything in the tables. Without room for that,
-- a claim sets a negative number, and the owner reads the values from the units' rows. The statements in it see what was
-- committed before the row was locked.
create or replace function tallystick_store_move() returns trigger language plpgsql as $$
declare
    newest bigint;
begin
    select max(unit) into newest from tallystick_store_unit where store = new.store and unit >= old.unit;
    if newest is not null then
        insert into tallystick_store_index (store, key, value)
        select distinct on (kept.key) new.store, kept.key, kept.value
        from tallystick_store_unit as units, unnest(units.keys, units.vals) as kept (key, value)
        where units.store = new.store and units.unit >= old.unit
        order by kept.key, units.unit desc
        on conflict (store, key) do update set value = excluded.value;
        delete from tallystick_store_unit where store = new.store and unit >= old.unit;
        new.unit := newest + 1;
    end if;
    return new;
end $$;

do $$
begin
    if not exists(
        select from pg_trigger where tgname = 'tallystick_store_move' and tgrelid = 'tallystick_store_fence'::regclass
    ) then
        create trigger tallystick_store_move before update on tallystick_store_fence
            for each row when (old.unit = new.unit) execute procedure tallystick_store_move();
    end if;
end $$;
