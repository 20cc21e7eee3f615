-- Tallystick's tables for MySQL and MariaDB. Run by tallystick.barrier.create_tables(conn); safe to run again.
-- InnoDB, because the rows must live and die with the local transaction.
-- A binary collation, because two gids that differ in case are two transactions.
-- Times are UTC, except in the barrier table, which keeps dtm's now().

-- Barrier: one row for each transaction with a known outcome. The columns are dtm's.
-- A two-phase message is the row (gid, branch_id '00', op 'msg', barrier_id '01');
-- reason 'msg' means committed, 'rollback' means rolled back.
create table if not exists tallystick_barrier (
    id bigint not null auto_increment primary key,
    trans_type varchar(45) not null default '',
    gid varchar(128) not null default '',
    branch_id varchar(128) not null default '',
    op varchar(45) not null default '',
    barrier_id varchar(45) not null default '',
    reason varchar(45) not null default '',
    create_time datetime default now(),
    update_time datetime default now(),
    key tallystick_barrier_create_time (create_time),
    key tallystick_barrier_update_time (update_time),
    unique key tallystick_barrier_unique (gid, branch_id, op, barrier_id)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- Inbox: the messages whose effect a consumer group has applied.
create table if not exists tallystick_inbox (
    consumer_group varchar(128) not null,
    message_id varchar(255) not null,
    created_at datetime(6) not null,
    primary key (consumer_group, message_id),
    key tallystick_inbox_created_at (created_at)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- Offset: a consumer group's place in each queue, moved in the same transaction as the effects.
create table if not exists tallystick_offset (
    consumer_group varchar(128) not null,
    store varchar(128) not null,
    topic varchar(128) not null,
    queue integer not null,
    next_offset bigint not null,
    updated_at datetime(6) not null,
    primary key (consumer_group, store, topic, queue)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- Outbox: messages that the local transaction has sent and the broker has not confirmed.
-- state 'prepare', 'commit' or 'rollback': what the broker is to be told next.
create table if not exists tallystick_outbox (
    gid varchar(128) not null primary key,
    broker varchar(255) not null,
    payload longblob not null,
    state varchar(16) not null,
    attempts integer not null default 0,
    created_at datetime(6) not null,
    touched_at datetime(6) not null,
    key tallystick_outbox_touched_at (touched_at)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- Prepared: messages that reached a consumer group before their outcome; the last one of a gid counts.
create table if not exists tallystick_prepared (
    consumer_group varchar(128) not null,
    gid varchar(128) not null,
    payload longblob not null,
    created_at datetime(6) not null,
    primary key (consumer_group, gid),
    key tallystick_prepared_created_at (created_at)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;

-- Digest: the SHA-256 (hex) of the values that a consumer group has applied, where a subscription asks for it.
-- A table of its own: databases that were made before it go on as they are, and groups that keep offsets have it too.
create table if not exists tallystick_digest (
    consumer_group varchar(128) not null,
    message_id varchar(255) not null,
    digest varchar(64) not null,
    created_at datetime(6) not null,
    primary key (consumer_group, message_id),
    key tallystick_digest_created_at (created_at)
) engine = InnoDB default charset = utf8mb4 collate = utf8mb4_bin;
