-- The brokers that share stores on MySQL or MariaDB, and the stores that they share. Beside the tables of the stores
-- themselves (mysql.sql), whose fences say who owns which. Made by `tallystick store create`, or by the first broker; safe to run again.

-- The stores of the cluster: their numbers, and the ids that they were given for ever. Never changed. Whoever makes a
-- cluster begins with the first row, which the others then wait for.
create table if not exists tallystick_cluster_store (
    store int unsigned not null primary key,
    id varbinary(64) not null unique
) engine = InnoDB row_format = dynamic;

-- The brokers. Each rewrites its own row a few times a second and reads all others: a beat that no longer grows is all
-- that the others need to know. Each beat waits for the disk, as every commit does here.
create table if not exists tallystick_cluster_member (
    id varbinary(64) not null primary key,
    name varbinary(1024) not null,
    url varbinary(2048) not null,
    grpc_url varbinary(2048) not null,
    beat bigint unsigned not null,
    leaving boolean not null
) engine = InnoDB row_format = dynamic;

-- What the brokers alone may know: the key that they sign with when one of them tells another who is asking. Drawn by
-- whoever needs it first.
create table if not exists tallystick_cluster_secret (
    name varbinary(64) not null primary key,
    secret varbinary(64) not null
) engine = InnoDB row_format = dynamic;
