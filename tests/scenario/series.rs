//! `tseries`, against what the program knows of itself.

use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::target;
use sidestep_tests::tool::sidestep;

/// The numbers behind a name, as often as it is there.
fn numbers(text: &str, name: &str) -> Vec<i64> {
    let behind = |rest: &str| rest.split([',', '}', ']']).next().and_then(|number| number.trim().parse().ok());
    text.split(&format!("\"{name}\": ")).skip(1).filter_map(behind).collect()
}

#[test]
fn intervals_add_up_to_all_calls() {
    let Some(program) = target("script") else { return };
    let path = program.to_string_lossy().into_owned();
    let script = format!(
        "u:{path}:add {{ @sum = tseries(arg0, 10ms, 1000, \"sum\"); @max = tseries(arg0, 10ms, 1000, \"max\"); \
         @[arg0 % 2] = tseries(1, 10ms, 1000, \"sum\"); @last = tseries(arg0, 10ms, 1000) }}"
    );
    let output =
        run(&mut sidestep(&["-f", "json", "-e", &script, "-o", "/dev/stderr", "--", &path, "adds", "3000"]), LIMIT);
    let line =
        |map: &str| output.stderr.lines().find(|line| line.contains(&format!("\"{map}\": "))).unwrap_or_default();
    assert!(
        line("@sum").starts_with("{\"type\": \"tseries\", \"data\": {\"@sum\": [{\"interval_start\": \"20"),
        "{}",
        output.stderr
    );
    assert_eq!(numbers(line("@sum"), "value").iter().sum::<i64>(), 2999 * 3000 / 2);
    assert_eq!(numbers(line("@max"), "value").into_iter().max(), Some(2999));
    assert_eq!(numbers(line("@last"), "value").last(), Some(&2999));
    assert_eq!(numbers(line("@"), "value").iter().sum::<i64>(), 3000);
}

#[test]
fn a_graph_has_a_row_for_each_interval() {
    // In one hour, unless a new one begins in between.
    let output = run(&mut sidestep(&["-e", "BEGIN { @ = tseries(-3, 1h, 5); @ = tseries(8, 1h, 5); exit() }"]), LIMIT);
    let rows: Vec<&str> = output.stdout.lines().skip(3).map(|line| line.get(9..).unwrap_or_default()).collect();
    assert_eq!(
        rows,
        [
            "7                                                   9",
            "|___________________________________________________|",
            "|                         *                         | 8",
            "v___________________________________________________v",
            "7                                                   9",
            "",
        ],
        "{}",
        output.stdout
    );
}

/// In the order of time, and with the axis that the script asks for. The first interval is the one
/// at 0, which meant that there is none.
#[test]
fn an_axis_is_as_long_as_the_script_says() {
    let script = "begin { @ts = (uint64)0; for ($i : 0..3) { @ = tseries(2 * $i - 2, 100ms, 9); @ts += 100ms } \
                  print(@, -10, 10); print(@, 0); clear(@); clear(@ts) }";
    let output = run(sidestep(&["-q", "-e", script]).env("TZ", "UTC").env("BPFTRACE_DUMMY_TS_MAP", "@ts"), LIMIT);
    let frame = "___________________________________________________";
    let graph = |ends: &str, rows: [&str; 3]| {
        let rows: String = (0..3).map(|at| format!("00:00:00.{at}00 {}\n", rows[at])).collect();
        format!("@:\n{ends}\nhh:mm:ss.ms  |{frame}|\n{rows}             v{frame}v\n{ends}\n\n")
    };
    let wide = graph(
        "             -10                                                10",
        [
            "|                   *     .                         | -2",
            "|                         *                         | 0",
            "|                         .    *                    | 2",
        ],
    );
    let narrow = graph(
        "             0                                                   2",
        [
            "*                                                   | -2",
            "*                                                   | 0",
            "|                                                   * 2",
        ],
    );
    assert_eq!(output.stdout, format!("{wide}{narrow}\n\n"), "{output}");
}
