//! What the programs that a script probes say of their types, and lists of arguments.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use sidestep_engine::types::{self, DataType, DebugInfo, Enumeration, FunctionType, Language, Passed, TypeError};
use sidestep_engine::{NoGoroutine, Options, Pattern, SessionError, Typed, TypedFunction};
use sidestep_lang::script::ast::{Point, Provider};
use sidestep_lang::script::ctype::{self, CType, Enum, Field, Layout, Record, Variants};
use sidestep_lang::script::program::{self, Convention, Parameter, Program, Signature, Symbol};

use super::{attach, usdt};
use crate::out::escape;
use crate::out::sink::say;

/// Functions of one attach point whose arguments are compared at most.
const FUNCTIONS: usize = 256;
/// Records within records at most.
const DEPTH: u32 = 64;

/// The programs that a script probes.
pub struct Programs {
    typed: Typed,
    pids: Vec<i32>,
    options: Options,
    /// All attach points of the script.
    points: Vec<Point>,
    /// By attach point.
    functions: HashMap<String, Result<Vec<TypedFunction>, String>>,
    /// By number.
    objects: Vec<Rc<DebugInfo>>,
    /// Records: the number of an object, and the place in its debug information. Their own places
    /// are their numbers here.
    records: Vec<(usize, u64)>,
    numbers: HashMap<(usize, u64), u64>,
    /// Records by place.
    layouts: HashMap<u64, Layout>,
    /// Records around the one that is looked at.
    depth: u32,
    /// The program that is going to run: it is searched where an attach point names no object.
    pub command: Option<String>,
}

impl Programs {
    /// Those of processes, or of files. Reads nothing yet.
    pub fn new(points: Vec<Point>, pids: &[i32], options: &Options) -> Programs {
        Programs {
            typed: Typed::new(pids, options),
            pids: pids.to_vec(),
            options: options.clone(),
            points,
            functions: HashMap::new(),
            objects: Vec::new(),
            records: Vec::new(),
            numbers: HashMap::new(),
            layouts: HashMap::new(),
            depth: 0,
            command: None,
        }
    }

    fn functions(&mut self, point: &Point) -> Result<Vec<TypedFunction>, String> {
        if let Some(known) = self.functions.get(&point.text()) {
            return known.clone();
        }
        let pattern = self.pattern(point);
        let found = pattern.and_then(|pattern| self.typed.functions(&pattern).map_err(|error| error.to_string()));
        self.functions.insert(point.text(), found.clone());
        found
    }

    /// What is looked for; without an object, in the command that is going to run.
    fn pattern(&self, point: &Point) -> Result<Pattern, String> {
        let mut pattern = attach::pattern(point, false).map_err(|error| error.to_string())?;
        if let (Some(command), None | Some("*")) = (&self.command, pattern.object.as_deref()) {
            pattern.object = Some(command.clone());
        }
        Ok(pattern)
    }

    /// Functions at any of these points that are described, or else at any of the script's.
    fn described(&mut self, points: &[Point]) -> (Vec<TypedFunction>, Option<String>) {
        let is_function = |point: &&Point| matches!(point.provider, Provider::Uprobe | Provider::Uretprobe);
        let mut all: Vec<Point> = points.iter().filter(is_function).cloned().collect();
        all.extend(self.points.iter().filter(is_function).filter(|point| !points.contains(point)).cloned());
        let (mut found, mut error) = (Vec::new(), None);
        for point in &all {
            match self.functions(point) {
                Ok(functions) => {
                    for function in functions {
                        match &function.info {
                            Err(why) => error = error.or_else(|| Some(why.to_string())),
                            // Of each object the first is enough: all of it is searched.
                            Ok(_) if found.iter().any(|f: &TypedFunction| f.object == function.object) => {}
                            Ok(_) => found.push(function),
                        }
                    }
                }
                Err(why) => error = error.or(Some(why)),
            }
        }
        (found, error)
    }

    fn number(&mut self, info: &Rc<DebugInfo>) -> usize {
        let known = self.objects.iter().position(|known| Rc::ptr_eq(known, info));
        known.unwrap_or_else(|| {
            self.objects.push(Rc::clone(info));
            self.objects.len() - 1
        })
    }

    fn function(&mut self, function: &TypedFunction) -> Result<Signature, String> {
        let info = function.info.as_ref().map_err(ToString::to_string)?;
        let found = info.function(function.va, &function.name).map_err(|error| error.to_string())?;
        let object = self.number(info);
        let FunctionType { parameters, result, result_in_memory, convention, kept, .. } = found;
        let mut parameter = |parameter: types::FunctionParameter| Parameter {
            name: parameter.name,
            ty: self.ctype(parameter.ty, object),
            passed: passed(parameter.passed),
            parts: parameter.parts.into_iter().map(|part| (part.bytes, part.register.map(argument))).collect(),
        };
        Ok(Signature {
            parameters: parameters.into_iter().map(&mut parameter).collect(),
            result: self.ctype(result, object),
            result_in_memory,
            convention: match convention {
                types::Convention::C => Convention::C,
                types::Convention::Compiler => Convention::Scalars,
                types::Convention::Go { registers } => Convention::Go { registers },
            },
            kept,
        })
    }

    /// A type of an object's debug information as one of the language.
    fn ctype(&mut self, ty: DataType, object: usize) -> CType {
        match ty {
            DataType::Void => CType::Void,
            DataType::Char => CType::Char,
            DataType::Number { bytes, signed } => CType::Int { bytes, signed },
            DataType::Bool => CType::bool(),
            DataType::Float(bytes) => CType::Float { bytes },
            DataType::Wide => CType::wide(),
            DataType::Enum(of) => CType::Enum(enumeration(of)),
            DataType::Pointer(of) => CType::Pointer(Box::new(self.ctype(*of, object))),
            DataType::Reference(of) => CType::Reference(Box::new(self.ctype(*of, object))),
            DataType::Array(of, length) => CType::Array(Box::new(self.ctype(*of, object)), length),
            DataType::Record { name, place } => {
                let number = *self.numbers.entry((object, place)).or_insert_with(|| {
                    self.records.push((object, place));
                    self.records.len() as u64 - 1
                });
                CType::Record(Record { name: name.into(), place: Some(number) })
            }
            DataType::Function => CType::Function,
        }
    }

    fn alignment(&mut self, ty: &CType) -> u64 {
        let word = size_of::<usize>() as u8;
        match ty {
            CType::Array(of, _) => self.alignment(of),
            CType::Record(Record { place: Some(place), .. }) => self.layout(*place).map_or(1, |layout| layout.align),
            other => other.align(word, &mut |_| None).unwrap_or(1),
        }
    }
}

/// Whether it is one number or address, or nothing.
fn is_single(ty: &CType) -> bool {
    !matches!(ty, CType::Record(_) | CType::Array(..))
}

impl Program for Programs {
    fn signature(&mut self, point: &Point) -> Result<Signature, String> {
        if point.provider == Provider::Usdt {
            let pattern = self.pattern(point)?;
            let of = |pid: Option<i32>| usdt::parameters(&pattern, pid, &self.options);
            // Of several processes, the first that has it.
            let mut pids = self.pids.iter().copied().map(Some);
            let first = of(pids.next().flatten());
            let parameters = pids.fold(first, |found, pid| found.or_else(|error| of(pid).map_err(|_| error)))?;
            let kept = vec![true; parameters.len()];
            return Ok(Signature {
                parameters,
                result: CType::Void,
                result_in_memory: false,
                convention: Convention::C,
                kept,
            });
        }
        let functions = self.functions(point)?;
        if functions.len() > FUNCTIONS {
            return Err(format!(
                "{} means {} functions: name those whose arguments are wanted",
                point.text(),
                functions.len()
            ));
        }
        let mut common: Option<Signature> = None;
        for function in &functions {
            let own = self.function(function)?;
            common = Some(match common {
                None => own,
                Some(mut known) => {
                    let same = known.parameters.iter().zip(&own.parameters).take_while(|(a, b)| a == b).count();
                    if same == 0 && known.parameters != own.parameters {
                        return Err(format!("the functions that {} means have different arguments", point.text()));
                    }
                    // The address of a result in memory is in front of the arguments.
                    let is_same_abi = known.convention == own.convention
                        && known.result_in_memory == own.result_in_memory
                        && (known.result == own.result || is_single(&known.result) && is_single(&own.result));
                    if !is_same_abi && !known.parameters.is_empty() {
                        return Err(format!(
                            "the functions that {} means have arguments at different places, as they have different results",
                            point.text()
                        ));
                    }
                    known.parameters.truncate(same);
                    known.kept = known.kept.iter().zip(&own.kept).map(|(a, b)| *a && *b).collect();
                    if known.result != own.result {
                        known.result = CType::Void;
                    }
                    known
                }
            });
        }
        common.ok_or_else(|| format!("{} means no function", point.text()))
    }

    fn named(&mut self, points: &[Point], name: &str) -> Result<CType, String> {
        let (functions, mut error) = self.described(points);
        for function in functions {
            let Ok(info) = &function.info else { continue };
            match info.find(name, Some(function.va)) {
                Ok(found) => {
                    let object = self.number(info);
                    return Ok(self.ctype(found, object));
                }
                Err(why) => error = Some(why.to_string()),
            }
        }
        let unknown = format!("Cannot resolve unknown type \"{name}\"");
        Err(error.map_or(unknown.clone(), |error| format!("{unknown}: {error}")))
    }

    fn layout(&mut self, place: u64) -> Result<Layout, String> {
        if self.depth > DEPTH {
            return Err("it contains itself".to_owned());
        }
        if let Some(known) = self.layouts.get(&place) {
            return Ok(known.clone());
        }
        let record = self.records.get(place as usize).copied();
        let known = record.and_then(|(object, at)| Some((object, at, self.objects.get(object).cloned()?)));
        let Some((object, at, info)) = known else {
            return Err("nothing is known of it".into());
        };
        let found = info.layout(at).map_err(|error| error.to_string())?;
        let variants = found.variants.map(|of| Variants { tag: of.tag, fields: of.members });
        let language = found.language.map(|language| match language {
            Language::Cpp => ctype::Language::Cpp,
            Language::Go => ctype::Language::Go,
            Language::Rust => ctype::Language::Rust,
            Language::Other => ctype::Language::Other,
        });
        let element = found.parameter.map(|ty| self.ctype(ty, object));
        let mut layout = Layout { size: found.size, align: 1, fields: Vec::new(), variants, language, element };
        for member in found.members {
            let ty = self.ctype(member.ty, object);
            self.depth += 1;
            layout.align = layout.align.max(self.alignment(&ty));
            self.depth -= 1;
            layout.fields.push(Field { name: member.name, ty, bit: member.bit, width: member.width });
        }
        self.layouts.insert(place, layout.clone());
        Ok(layout)
    }

    fn symbol(&mut self, point: &Point, name: &str) -> Result<Symbol, String> {
        let pattern = self.pattern(point)?;
        let mut found: Option<Symbol> = None;
        for (object, size) in self.typed.symbol(&pattern, name).map_err(|error| error.to_string())? {
            let Some(size) = size else {
                return Err(format!("Could not find symbol '{name}' in {}", object.display()));
            };
            let known = found.map_or(size, |known| if known.size == size { size } else { 0 });
            found = Some(Symbol { size: known });
        }
        found.ok_or_else(|| format!("Could not find symbol '{name}'"))
    }

    fn goroutines(&mut self, point: &Point) -> Result<(), String> {
        let pattern = self.pattern(point)?;
        let found = self.typed.goroutines(&pattern).map_err(|error| error.to_string())?;
        // Of many functions, those that are no Go have goid 0.
        let many = found.len() > 1 && found.iter().any(|function| function.known.is_ok());
        let Some((function, why)) = found.iter().find_map(|f| Some((f, f.known.err()?))).filter(|_| !many) else {
            return Ok(());
        };
        let object = function.object.display();
        Err(match why {
            NoGoroutine::NotGo => format!("goid is the number of a goroutine: {object} is no Go program"),
            NoGoroutine::NotGoCode => {
                format!("goid is known in Go code: {} of {object} is C or assembly", function.name)
            }
            NoGoroutine::Version => {
                format!("goid needs Go 1.18 to 1.26, or debug information: {object} is of another one and has none")
            }
        })
    }

    fn constant(&mut self, points: &[Point], name: &str) -> Option<(Arc<Enum>, u64)> {
        let (functions, _) = self.described(points);
        functions.iter().find_map(|function| {
            let found = function.info.as_ref().ok()?.constant(name, function.va)?;
            let value = found.values.iter().find(|(known, _)| known == name)?.1;
            Some((enumeration(found), value))
        })
    }
}

fn enumeration(of: Enumeration) -> Arc<Enum> {
    Arc::new(Enum { name: of.name, bytes: of.bytes, signed: of.signed, values: of.values })
}

/// Offsets in the context of the general registers of 32-bit programs, by their DWARF numbers.
const REGISTERS: [u16; 8] = [80, 88, 96, 40, 152, 32, 104, 112];

fn argument(of: types::Argument) -> program::Argument {
    match of {
        types::Argument::Integer(at) => program::Argument::Integer(at),
        types::Argument::Float(at) => program::Argument::Float(at),
    }
}

/// Where a parameter is, as debug information says it.
fn passed(by: Passed) -> program::Passed {
    match by {
        Passed::Abi => program::Passed::Convention,
        Passed::Pieces(pieces) => {
            program::Passed::Pieces(pieces.iter().map(|piece| (argument(piece.register), piece.bytes)).collect())
        }
        Passed::At(register) => program::Passed::At(argument(register)),
        Passed::Stack(offset) => program::Passed::Stack(offset),
        Passed::Register(number) => {
            let at = REGISTERS.get(usize::from(number));
            at.map_or(program::Passed::Unknown, |at| program::Passed::Register(*at))
        }
        Passed::Unknown => program::Passed::Unknown,
    }
}

/// The arguments of the functions that a pattern means, by object and name: a line each, as `-lv`
/// prints them below a function; below one that returns, its result.
pub fn arguments(
    pattern: &Pattern,
    provider: Provider,
    pid: Option<i32>,
    options: &Options,
) -> Result<HashMap<(PathBuf, String), String>, SessionError> {
    let mut lines = HashMap::new();
    let mut missing = HashSet::new();
    for function in Typed::new(pid.as_slice(), options).functions(pattern)? {
        let Ok(info) = &function.info else { continue };
        let described = match info.function(function.va, &function.name) {
            Ok(described) => described,
            Err(error) => {
                let error = matches!(error, TypeError::NoSplit { .. }).then(|| error.to_string());
                if let Some(error) = error.filter(|error| missing.insert(error.clone())) {
                    say(&format!("WARNING: {error}"));
                }
                continue;
            }
        };
        let text = match provider {
            Provider::Uretprobe if described.result == DataType::Void => String::new(),
            Provider::Uretprobe => format!("\n    {} retval", escape::row(&described.result_text)),
            _ => {
                let line =
                    |p: &types::FunctionParameter| format!("\n    {} {}", escape::row(&p.text), escape::row(&p.name));
                described.parameters.iter().map(line).collect()
            }
        };
        lines.insert((function.object, function.name), text);
    }
    Ok(lines)
}
