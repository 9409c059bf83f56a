/* Real code at work: sqlite's bytecode engine. The library comes without headers. */
#include "serve.h"

int sqlite3_open(const char *, void **);
int sqlite3_exec(void *, const char *, int (*)(void *, int, char **, char **), void *, char **);
int sqlite3_close(void *);

static const char script[] =
    "create table t(a integer primary key, b text, c real);"
    "with recursive n(i) as (select 1 union all select i + 1 from n where i < 200)"
    " insert into t select i, printf('%d-%x', i * 7, i * i), i / 3.0 from n;"
    "create index tb on t(b);"
    "select count(*), sum(a), avg(c), group_concat(substr(b, 1, 2)) from t where b like '%1%' group by a % 7 order by 2 desc;"
    "update t set c = c * 2 where a % 3 = 0;"
    "delete from t where a % 5 = 0 or b between '2' and '3';"
    "select hex(sum(a)), max(b), total(c) from t join (select a x from t where a < 50) on x = a;"
    "select a, case when c > 40 then upper(b) else -a end from t where exists (select 1 from t u where u.a = t.a + 1);";

static int row(void *sum, int columns, char **values, char **names)
{
    (void)names;
    for (int i = 0; i < columns; i++)
        for (const char *c = values[i] ? values[i] : "null"; *c; c++)
            *(unsigned long *)sum = *(unsigned long *)sum * 31 + *c;
    return 0;
}

/* Checksum over n rounds. */
static long rounds(long n)
{
    unsigned long sum = 0;
    for (long k = 0; k < n; k++) {
        void *db;
        if (sqlite3_open(":memory:", &db) || sqlite3_exec(db, script, row, &sum, NULL) || sqlite3_close(db))
            return -1;
    }
    return sum & 0x7fffffff;
}

int main(int argc, char **argv)
{
    static const struct command table[] = { { "rounds", rounds }, { 0 } };
    return serve(argc, argv, table);
}
