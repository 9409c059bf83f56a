//! What would be done at a site.

use sidestep_engine::Explained;
use sidestep_isa::Va;
use sidestep_plan::Plan;
use sidestep_plan::explain::{self, Returns, field};

use super::json;

/// The lines for one site among others. `verbose`: also what the detour need not save.
pub fn lines(site: &Explained, others: &[Explained], verbose: bool) -> Vec<String> {
    let mut lines = vec![format!("{} in {}", site.name, site.object.display())];
    match &site.plan {
        Ok(plan) => {
            lines.extend(explain::lines(&plan.for_now(), &site.returns, verbose));
            lines.extend(blocked(site, plan, others));
        }
        Err(refusal) => {
            lines.push(field("address", &refusal.asked.to_string()));
            lines.push(field("technique", &format!("none: {}", refusal.reason)));
        }
    }
    lines
}

/// The same in JSON, without what the bytes at the site become.
pub fn json(site: &Explained) -> String {
    let text = |text: &dyn ToString| json::string(&text.to_string());
    let place = [("name", text(&site.name)), ("object", text(&site.object.display()))];
    let members = match &site.plan {
        Ok(plan) => {
            let now = plan.for_now();
            let rejected = now.rejected.iter().map(|rejected| {
                json::object([("technique", text(&rejected.technique)), ("reason", text(&rejected.reason))])
            });
            let returns =
                match &site.returns {
                    Returns::AtExits(exits) => json::array(exits.iter().map(|exit| {
                        json::object([("address", text(&exit.asked)), ("technique", text(&exit.technique))])
                    })),
                    Returns::ByAddress { why } => json::object([("by_address", text(why))]),
                    Returns::Not { why } => json::object([("refused", text(why))]),
                };
            vec![
                ("address", text(&now.asked)),
                ("technique", text(&now.technique)),
                ("site", text(&now.site)),
                ("bytes", json::number(now.region.0)),
                ("returns", returns),
                ("blocked_by", json::array(plan.blocked_by.iter().map(|va| text(va)))),
                ("rejected", json::array(rejected)),
            ]
        }
        Err(refusal) => vec![("address", text(&refusal.asked)), ("refused", text(&refusal.reason))],
    };
    json::line("site", json::object(place.into_iter().chain(members)))
}

/// What becomes of a site when nothing blocks it any more.
fn blocked(site: &Explained, plan: &Plan, others: &[Explained]) -> Option<String> {
    let name = |va: &Va| {
        let is_it =
            |other: &&Explained| other.object == site.object && other.plan.as_ref().is_ok_and(|plan| plan.site == *va);
        others.iter().find(is_it).map_or_else(|| va.to_string(), |other| other.name.clone())
    };
    let names: Vec<String> = plan.blocked_by.iter().map(name).collect();
    let once = match &names[..] {
        [] => return None,
        [_] => "that is disabled",
        _ => "they are disabled",
    };
    Some(field("blocked", &format!("by {}: {} once {once}", names.join(", "), plan.technique)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidestep_engine::Refusal;
    use sidestep_plan::Reason;

    #[test]
    fn refusal_has_its_reason() {
        let refusal = Refusal { asked: Va(0x20), reason: Reason::Breakpoint.into() };
        let returns = explain::Returns::Not { why: String::new() };
        let site =
            Explained { name: "f".to_owned(), object: "/bin/a".into(), plan: Err(refusal), returns, is_few: false };
        assert_eq!(lines(&site, &[], false)[2], "  technique   none: there is a breakpoint already");
        assert_eq!(
            json(&site),
            r#"{"type": "site", "data": {"name": "f", "object": "/bin/a", "address": "0x20", "refused": "there is a breakpoint already"}}"#
        );
    }
}
