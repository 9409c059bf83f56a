//! Plans keep the rules of `docs/internals/soundness.md`, by what binutils say of the code.
//! `cargo xtask rules` compares more objects.

use std::path::Path;

use sidestep_tests::build::have;
use sidestep_tests::rules::compare;
use sidestep_tests::target;

#[test]
fn plans_agree_with_an_independent_disassembly() {
    if !have(&["objdump", "readelf"]) {
        return;
    }
    let mut objects = vec![Path::new("/bin/bash").to_owned()];
    objects.extend(["labels", "thrown-load", "counts"].iter().filter_map(|name| target(name)));
    let (mut plans, mut several, mut exits) = (0, 0, 0);
    for object in objects {
        let compared = compare(&object, 10).unwrap_or_else(|| panic!("{}: no code", object.display()));
        let broken: Vec<String> = compared.broken.iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "{}:\n{}", object.display(), broken.join("\n"));
        plans += compared.plans;
        several += compared.several;
        exits += compared.exits;
    }
    assert!(plans > 1000 && several > 500 && exits > 1000, "{plans} plans, {several} of several, {exits} exits");
}
