//! What a session says of some of its processes at its end.

/// For each reason, the processes that have it, and the reason as the first of them gave it. The
/// processes are the subject of a sentence: `process 7 was`, `3 processes (7, 8, …) were`. Reasons
/// that differ in the id of the process alone are one.
pub fn by_reason(all: &[(i32, String)]) -> Vec<(String, &str)> {
    let mut kinds: Vec<(String, Vec<i32>, &str)> = Vec::new();
    for (pid, reason) in all {
        let kind = reason.replace(&pid.to_string(), "");
        match kinds.iter_mut().find(|known| known.0 == kind) {
            Some((_, pids, _)) if pids.contains(pid) => {}
            Some((_, pids, _)) => pids.push(*pid),
            None => kinds.push((kind, vec![*pid], reason)),
        }
    }
    kinds.into_iter().map(|(_, pids, reason)| (subject(&pids), reason)).collect()
}

fn subject(pids: &[i32]) -> String {
    match pids {
        [pid] => format!("process {pid} was"),
        [first, second] => format!("2 processes ({first}, {second}) were"),
        [first, second, ..] => format!("{} processes ({first}, {second}, …) were", pids.len()),
        [] => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_said_once() {
        let full = |pid: i32| (pid, format!("process {pid} may map no 4 KiB more"));
        let user = |pid: i32| (pid, "its new program runs as another user".to_owned());
        assert_eq!(by_reason(&[]), []);
        assert_eq!(by_reason(&[user(7)]), [("process 7 was".to_owned(), "its new program runs as another user")]);
        let all = [full(70), user(8), user(9), full(71), user(8), full(72)];
        let expected = [
            ("3 processes (70, 71, …) were".to_owned(), "process 70 may map no 4 KiB more"),
            ("2 processes (8, 9) were".to_owned(), "its new program runs as another user"),
        ];
        assert_eq!(by_reason(&all), expected);
    }
}
