-- Tallystick's shared stores on MySQL 8 and MariaDB 10.6 and later, in InnoDB. Made by `tallystick store create`, or by
-- the first broker; safe to run again. A store is a number; the tables hold all stores of a database.
--
-- What the server needs: innodb_flush_log_at_trx_commit = 1 and, where there is a binary log, sync_binlog = 1 (MariaDB's
-- own is 0): with less, a crash of the machine takes back what was acknowledged. max_allowed_packet of at least 32M,
-- because a value goes over in one piece, and the largest are requests of 16 MiB; MariaDB's own is 16M.
--
-- A unit is one packet of statements: begin, the fence, rows as `insert ... on duplicate key update` and `delete`,
-- commit. Processor time of the server for 1,000 rows of 1 KiB: 15 to 19 ms so, 49 ms from one document with json_table.
-- `replace` costs the same as the insert.
--
-- Rows that come and go: InnoDB's purge keeps up with groups of 1,000 (a history list of less than 10). After 62,000
-- transactions of 1 KiB, prepared and committed, tallystick_store_tx held 140 bytes for each, and the 72 rows that were
-- alive in tallystick_store_index took 4.4 MB. Long snapshots of others (a dump, a report) keep the purge from its work:
-- a look along the line of due checks then walks over dead rows, 13,000 of them in 3 to 18 ms instead of 1. Five seconds
-- after the end of the snapshot all were gone. Watch Innodb_history_list_length (MySQL: trx_rseg_history_len).
--
-- Stores do not wait for each other, with one exception: a deleted range that ends at the last row of a store looks at
-- the first row of the next, and waits while that is being written. Such waits only go upwards, never round.

-- The fence: who owns a store (epoch, owner), and how many units were written to it. Every unit begins by updating this
-- row, under READ COMMITTED, where the update of a row that says something else leaves no lock behind.
create table if not exists tallystick_store_fence (
    store int unsigned not null primary key,
    epoch bigint unsigned not null,
    unit bigint unsigned not null,
    owner varbinary(1024) not null
) engine = InnoDB row_format = dynamic;

-- The areas, a table each: bytes in order of their keys. One table with a column for the area was as fast; apart, they
-- can be watched, and rebuilt (`optimize table`), by themselves. There is no second index: each change is one place in
-- one tree. The longest thing a key is made of is the host of a URL of 2,048 characters; InnoDB's limit is 3,072 bytes.
-- `size` is the length of the value, so that a page of rows can be measured without reading values that lie outside
-- of the row.

-- Transactions: each is rewritten once, when its outcome (a short tombstone) takes the place of its messages. The pages
-- that this empties are merged as soon as they are less than half full.
create table if not exists tallystick_store_tx (
    store int unsigned not null,
    `key` varbinary(2100) not null,
    size int unsigned not null,
    value longblob not null,
    primary key (store, `key`)
) engine = InnoDB row_format = dynamic;

-- Queues: written once, read in order, deleted from the head.
create table if not exists tallystick_store_log (
    store int unsigned not null,
    `key` varbinary(2100) not null,
    size int unsigned not null,
    value longblob not null,
    primary key (store, `key`)
) engine = InnoDB row_format = dynamic;

-- Lines, leases, cursors, counters: small rows that come and go all the time.
create table if not exists tallystick_store_index (
    store int unsigned not null,
    `key` varbinary(2100) not null,
    size int unsigned not null,
    value longblob not null,
    primary key (store, `key`)
) engine = InnoDB row_format = dynamic;

-- Large bodies in columns: written once, read by key, deleted when their topic is trimmed.
create table if not exists tallystick_store_body (
    store int unsigned not null,
    `key` varbinary(2100) not null,
    size int unsigned not null,
    value longblob not null,
    primary key (store, `key`)
) engine = InnoDB row_format = dynamic;
