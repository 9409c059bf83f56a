//! What would be done at a site.

use sidestep_engine::Explained;
use sidestep_plan::explain::{self, field};

/// The lines for one site. `verbose`: also what the detour need not save.
pub fn lines(site: &Explained, verbose: bool) -> Vec<String> {
    let mut lines = vec![format!("{} in {}", site.name, site.object.display())];
    match &site.plan {
        Ok(plan) => lines.extend(explain::lines(plan, verbose)),
        Err(refusal) => {
            lines.push(field("address", &refusal.asked.to_string()));
            lines.push(field("technique", &format!("none: {}", refusal.reason)));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_isa::Va;
    use sidestep_plan::Refusal;

    #[test]
    fn refusal_has_its_reason() {
        let refusal = Refusal { asked: Va(0x20), reason: "inside an atomic sequence".to_owned() };
        let site = Explained { name: "f".to_owned(), object: "/bin/a".into(), plan: Err(refusal) };
        assert_eq!(lines(&site, false)[2], "  technique   none: inside an atomic sequence");
    }
}
