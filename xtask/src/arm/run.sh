# Runs one test of the guest: sh run.sh NAME. Prints `test NAME ... RESULT (N s)`, and what a test
# that failed has said. RESULT is `ok`, `FAILED` or `skipped: WHY`.
# Arguments: the longest time in seconds, the name.
name=$2
file=/tmp/tests/$(echo "$name" | tr : -)
read -r begin rest < /proc/uptime
# A session of its own: all that it starts is found by it, also if the test itself is killed.
SIDESTEP_SKIPPED=$file.skipped setsid sh -c '
    echo $$ > "$1.session"
    exec timeout -s KILL "$2" /guest/target/debug/scenario --exact "$3" --test-threads 1
' sh "$file" "$1" "$name" < /dev/null > "$file" 2>&1
status=$?
read -r session < "$file.session"
pkill -KILL -s "$session"
read -r end rest < /proc/uptime
seconds=$((${end%.*} - ${begin%.*}))
exec 9> /tmp/tests/lock
flock 9
if [ $status != 0 ]; then
    echo "test $name ... FAILED ($seconds s)"
    [ $status = 137 ] && echo "    killed after $1 s"
    { head -c 2500 "$file"; echo; echo "[...]"; tail -c 2500 "$file"; } | sed 's/^/    /'
elif [ -s "$file.skipped" ]; then
    echo "test $name ... skipped: $(cat "$file.skipped") ($seconds s)"
else
    echo "test $name ... ok ($seconds s)"
fi
rm -f "$file" "$file".*
