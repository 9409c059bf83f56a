//! `bashreadline`: the lines that are typed into a shell.

use super::{Tool, spec};
use crate::flags::Output;
use crate::flags::tools::{Bashreadline, Run};
use crate::out::script::Layout;

impl Tool for Bashreadline {
    const NAME: &'static str = "bashreadline";

    fn flags(&self) -> &Run {
        &self.run
    }

    fn output(&self) -> Output {
        self.output.clone()
    }

    fn script(&self) -> Result<String, String> {
        let point = spec::point("uretprobe", self.shared.as_deref().unwrap_or("*"), "readline", false)?;
        let line = "printf(\"%-9s %-7d %s\\n\", strftime(\"%H:%M:%S\", nsecs), pid, str(retval))";
        Ok(format!("{point} /retval/ {{ {line} }}\n"))
    }

    fn layout(&self) -> Box<dyn Layout> {
        Box::new(Lines)
    }
}

struct Lines;

impl Layout for Lines {
    fn heading(&self) -> String {
        format!("{:<9} {:<7} COMMAND", "TIME", "PID")
    }

    fn columns(&self) -> &[&str] {
        &["time", "pid", "command"]
    }
}
