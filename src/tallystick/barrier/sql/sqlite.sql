-- Tallystick's tables for SQLite. Run by tallystick.barrier.create_tables(conn); safe to run again.
-- Times are UTC text, as strftime('%Y-%m-%d %H:%M:%f', 'now') writes it.

-- Barrier: one row for each transaction with a known outcome. The columns are dtm's.
-- A two-phase message is the row (gid, branch_id '00', op 'msg', barrier_id '01');
-- reason 'msg' means committed, 'rollback' means rolled back.
create table if not exists tallystick_barrier (
    id integer primary key autoincrement,
    trans_type varchar(45) not null default '',
    gid varchar(128) not null default '',
    branch_id varchar(128) not null default '',
    op varchar(45) not null default '',
    barrier_id varchar(45) not null default '',
    reason varchar(45) not null default '',
    create_time text not null default (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    update_time text not null default (strftime('%Y-%m-%d %H:%M:%f', 'now')),
    unique (gid, branch_id, op, barrier_id)
);
create index if not exists tallystick_barrier_create_time on tallystick_barrier (create_time);

-- Inbox: the messages whose effect a consumer group has applied.
create table if not exists tallystick_inbox (
    consumer_group varchar(128) not null,
    message_id varchar(255) not null,
    created_at text not null,
    primary key (consumer_group, message_id)
);
create index if not exists tallystick_inbox_created_at on tallystick_inbox (created_at);

-- Offset: a consumer group's place in each queue, moved in the same transaction as the effects.
create table if not exists tallystick_offset (
    consumer_group varchar(128) not null,
    store varchar(128) not null,
    topic varchar(128) not null,
    queue integer not null,
    next_offset bigint not null,
    updated_at text not null,
    primary key (consumer_group, store, topic, queue)
);

-- Outbox: messages that the local transaction has sent and the broker has not confirmed.
-- state 'prepare', 'commit' or 'rollback': what the broker is to be told next.
create table if not exists tallystick_outbox (
    gid varchar(128) not null primary key,
    broker varchar(255) not null,
    payload blob not null,
    state varchar(16) not null,
    attempts integer not null default 0,
    created_at text not null,
    touched_at text not null
);
create index if not exists tallystick_outbox_touched_at on tallystick_outbox (touched_at);

-- Prepared: messages that reached a consumer group before their outcome; the last one of a gid counts.
create table if not exists tallystick_prepared (
    consumer_group varchar(128) not null,
    gid varchar(128) not null,
    payload blob not null,
    created_at text not null,
    primary key (consumer_group, gid)
);
create index if not exists tallystick_prepared_created_at on tallystick_prepared (created_at);

-- Digest: the SHA-256 (hex) of the values that a consumer group has applied, where a subscription asks for it.
-- A table of its own: databases that were made before it go on as they are, and groups that keep offsets have it too.
create table if not exists tallystick_digest (
    consumer_group varchar(128) not null,
    message_id varchar(255) not null,
    digest varchar(64) not null,
    created_at text not null,
    primary key (consumer_group, message_id)
);
create index if not exists tallystick_digest_created_at on tallystick_digest (created_at);
