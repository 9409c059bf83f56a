//! The text of an event's `format` file, as tools for the kernel's events read it.

use std::fmt::Write;

use sidestep_bpf::Size;

use super::event::{Arg, Event, Kind, Type};

impl Event {
    /// What the kernel's `events/GROUP/NAME/format` would say, with this `ID`. Offsets are those of
    /// the kernel's records.
    #[must_use]
    pub fn format_file(&self, id: u32) -> String {
        let mut text = format!("name: {}\nID: {id}\nformat:\n", self.name);
        let mut at = 0;
        let mut field = |ty: &str, name: &str, size: usize, signed: bool| {
            // The kernel shows no length there.
            let (ty, array) = match ty.split_once('[') {
                Some((element, _)) if !ty.starts_with("__data_loc") => (element, "[]"),
                _ => (ty, ""),
            };
            let signed = u8::from(signed);
            let line = format!("\tfield:{ty} {name}{array};\toffset:{at};\tsize:{size};\tsigned:{signed};\n");
            at += size;
            line
        };
        text += &field("unsigned short", "common_type", 2, false);
        text += &field("unsigned char", "common_flags", 1, false);
        text += &field("unsigned char", "common_preempt_count", 1, false);
        text += &field("int", "common_pid", 4, true);
        text.push('\n');
        let places: &[&str] = match self.kind {
            Kind::Entry => &["__probe_ip"],
            Kind::Return => &["__probe_func", "__probe_ret_ip"],
        };
        for name in places {
            text += &field("unsigned long", name, 8, false);
        }
        for arg in &self.args {
            let size = arg.ty.size().bytes() * arg.count.unwrap_or(1) as usize;
            text += &field(&type_name(arg), &arg.name, size, arg.ty.is_signed() || arg.ty == Type::String);
        }
        text + &self.print_format()
    }

    fn print_format(&self) -> String {
        let (mut formats, mut values) = match self.kind {
            Kind::Entry => ("(%lx)".to_owned(), ", REC->__probe_ip".to_owned()),
            Kind::Return => ("(%lx <- %lx)".to_owned(), ", REC->__probe_func, REC->__probe_ret_ip".to_owned()),
        };
        // Writing to a string does not fail.
        for arg in &self.args {
            let (format, name) = (print_format(arg.ty), &arg.name);
            let elements = vec![format; arg.count.unwrap_or(1) as usize].join(",");
            let _ = match arg.count {
                None => write!(formats, " {name}={format}"),
                Some(_) => write!(formats, " {name}={{{elements}}}"),
            };
            for n in 0..arg.count.unwrap_or(1) {
                let element = arg.count.map_or_else(String::new, |_| format!("[{n}]"));
                let _ = match arg.ty {
                    Type::String => write!(values, ", __get_str({name}{element})"),
                    _ => write!(values, ", REC->{name}{element}"),
                };
            }
        }
        format!("\nprint fmt: \"{formats}\"{values}\n")
    }
}

fn type_name(arg: &Arg) -> String {
    let name = match arg.ty {
        Type::String => "__data_loc char[]".to_owned(),
        Type::Signed(size) => format!("s{}", size.bits()),
        ty => format!("u{}", ty.size().bits()),
    };
    arg.count.map_or(name.clone(), |count| format!("{name}[{count}]"))
}

fn print_format(ty: Type) -> &'static str {
    match ty {
        Type::Unsigned(Size::Dw) | Type::Bits { size: Size::Dw, .. } => "%Lu",
        Type::Unsigned(_) | Type::Bits { .. } => "%u",
        Type::Signed(Size::Dw) => "%Ld",
        Type::Signed(_) => "%d",
        Type::Hex(Size::Dw) => "0x%Lx",
        Type::Hex(_) => "0x%x",
        Type::Char => "'%c'",
        Type::String => "\\\"%s\\\"",
    }
}
