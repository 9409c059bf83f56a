//! Headers of the system in scripts: types and constants are those that the C compiler finds.

use std::path::Path;
use std::process::Command;

use sidestep_tests::build::{have, target_dir};
use sidestep_tests::process::{LIMIT, run};
use sidestep_tests::skip;
use sidestep_tests::tool::sidestep;

/// Headers, and what they declare: `sizeof` and `offsetof` of types, and constants.
const HEADERS: [(&str, &[&str]); 19] = [
    ("stdio.h", &["sizeof(FILE)", "EOF + 2", "SEEK_END", "BUFSIZ"]),
    ("stdlib.h", &["sizeof(div_t)", "sizeof(ldiv_t)", "EXIT_FAILURE", "RAND_MAX"]),
    ("string.h", &["sizeof(size_t)"]),
    ("unistd.h", &["sizeof(pid_t)", "F_OK", "R_OK", "STDERR_FILENO", "_SC_PAGESIZE"]),
    ("time.h", &["sizeof(struct tm)", "offsetof(struct tm, tm_year)", "sizeof(struct timespec)", "CLOCK_MONOTONIC"]),
    ("sys/types.h", &["sizeof(off_t)", "sizeof(mode_t)", "sizeof(dev_t)", "sizeof(u_int32_t)"]),
    (
        "sys/socket.h",
        &[
            "sizeof(struct sockaddr)",
            "sizeof(struct sockaddr_storage)",
            "offsetof(struct msghdr, msg_control)",
            "AF_INET6",
            "SOCK_STREAM",
            "SOCK_NONBLOCK",
            "SOL_SOCKET",
            "SO_REUSEADDR",
            "MSG_PEEK",
            "SHUT_RDWR",
        ],
    ),
    (
        "netinet/in.h",
        &[
            "sizeof(struct sockaddr_in)",
            "offsetof(struct sockaddr_in, sin_addr)",
            "sizeof(struct sockaddr_in6)",
            "IPPROTO_TCP",
            "IPPROTO_IPV6",
            "INET6_ADDRSTRLEN",
        ],
    ),
    ("sys/stat.h", &["sizeof(struct stat)", "offsetof(struct stat, st_size)", "S_IFMT", "S_IFDIR", "S_IRWXU"]),
    ("sys/time.h", &["sizeof(struct timeval)", "sizeof(struct itimerval)", "ITIMER_PROF"]),
    (
        "signal.h",
        &["sizeof(siginfo_t)", "sizeof(struct sigaction)", "sizeof(sigset_t)", "SIGKILL", "SA_RESTART", "SIG_BLOCK"],
    ),
    (
        "pthread.h",
        &["sizeof(pthread_mutex_t)", "sizeof(pthread_attr_t)", "sizeof(pthread_t)", "PTHREAD_CREATE_DETACHED"],
    ),
    ("errno.h", &["ENOENT", "EAGAIN", "ENOTSUP"]),
    ("fcntl.h", &["sizeof(struct flock)", "O_CREAT", "O_CLOEXEC", "F_SETFL", "AT_FDCWD + 200"]),
    ("sys/epoll.h", &["sizeof(struct epoll_event)", "offsetof(struct epoll_event, data)", "EPOLLIN", "EPOLL_CTL_DEL"]),
    ("poll.h", &["sizeof(struct pollfd)", "offsetof(struct pollfd, revents)", "POLLIN", "POLLHUP"]),
    ("linux/types.h", &["sizeof(__u32)", "sizeof(__be16)", "sizeof(__kernel_pid_t)"]),
    ("linux/in.h", &["sizeof(struct in_addr)", "sizeof(struct ip_mreqn)", "IP_TTL"]),
    ("inttypes.h", &["sizeof(uint64_t)", "sizeof(intmax_t)"]),
];

/// A function of the header that scripts cannot call, a macro with arguments and inline code do no
/// harm: see `sys/socket.h` and others.
fn script(headers: &[&str], values: &[&str]) -> String {
    let includes: String = headers.iter().map(|header| format!("#include <{header}>\n")).collect();
    let prints: String = values.iter().map(|value| format!("print((uint64)({value}));\n")).collect();
    format!("{includes}begin {{\n{prints}}}\n")
}

/// What the compiler says of the same.
fn compiled(header: &str, values: &[&str]) -> Vec<String> {
    let prints: String =
        values.iter().map(|value| format!("printf(\"%lu\\n\", (unsigned long)({value}));\n")).collect();
    let source =
        format!("#include <{header}>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {{\n{prints}}}\n");
    let folder = target_dir().join("test-targets").join(format!("headers.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("writable");
    let (file, program) = (folder.join("of.c"), folder.join("of"));
    std::fs::write(&file, source).expect("writable");
    run(Command::new("cc").arg("-o").args([&program, &file]), LIMIT).ok();
    let output = run(&mut Command::new(&program), LIMIT).ok();
    let _ = std::fs::remove_dir_all(&folder);
    output.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn headers_declare_what_the_compiler_finds_in_them() {
    if !have(&["cc"]) {
        return;
    }
    let (mut missing, mut wrong, mut all) = (Vec::new(), Vec::new(), Vec::new());
    for (header, values) in HEADERS {
        let folders = ["/usr/include".to_owned(), format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH)];
        if !folders.iter().any(|folder| Path::new(folder).join(header).exists()) {
            missing.push(header);
            continue;
        }
        all.push(header);
        let output = run(&mut sidestep(&["-q", "-e", &script(&[header], values)]), LIMIT);
        let printed: Vec<String> = output.stdout.lines().take(values.len()).map(str::to_owned).collect();
        let wanted = compiled(header, values);
        if output.code() != 0 || printed != wanted {
            wrong.push(format!("{header}: {values:?}\n{printed:?}, not\n{wanted:?}\n{output}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    // Each is read once, however many include it.
    let output = run(&mut sidestep(&["-q", "-e", &script(&all, &["sizeof(struct sockaddr_in)"])]), LIMIT).ok();
    assert!(output.stdout.starts_with("16\n"), "{output}");
    if !missing.is_empty() {
        skip(&format!("{} of {} headers are not installed: {}", missing.len(), HEADERS.len(), missing.join(", ")));
    }
}

/// `struct sockaddr` of the target by the header, without debug information.
#[test]
fn a_struct_of_a_header_is_read_in_a_program() {
    if !Path::new("/usr/include/netinet/in.h").exists() {
        return skip("the header netinet/in.h is not installed");
    }
    let script = "#include <netinet/in.h>
        #include <sys/socket.h>
        u:libc:connect {
            $to = (struct sockaddr_in *)arg1;
            if ($to->sin_family == AF_INET) { print((bswap($to->sin_port), ntop($to->sin_addr.s_addr))) }
        }";
    let program = "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('127.0.0.9', 4660))";
    let output = run(&mut sidestep(&["-q", "-e", script, "--", "/usr/bin/python3", "-c", program]), LIMIT).ok();
    assert!(output.stdout.starts_with("(4660, 127.0.0.9)\n"), "{output}");
}
