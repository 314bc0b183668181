//! Whether a tree may be run, and how it is kept apart.

use crate::domain::Content;
use crate::harness::sandbox::Isolation;
use crate::harness::tree::{Body, Tree};
use crate::recipe::IsolationRule;

/// Whether a tree brings code that runs without being asked for.
pub(super) fn brings_code(tree: &Tree) -> bool {
    tree.entries.iter().filter(|entry| !entry.disabled).any(|entry| {
        let scripts = matches!(&entry.body, Body::Skill(skill) if skill.files.values().any(Content::is_script));
        // What an agent may run unasked is as good as code.
        let permits =
            matches!(&entry.body, Body::Config(config) if config.data.keys().any(|key| key.starts_with("permission")));
        entry.kind().runs_code() || scripts || permits
    })
}

/// How episodes of a tree are isolated. `unavailable` says why this machine gives no namespaces, if it does not.
pub(super) fn decide(rule: IsolationRule, brings_code: bool, unavailable: Option<&str>) -> Result<Isolation, String> {
    match (rule, unavailable) {
        (IsolationRule::Off, _) => Ok(Isolation::None),
        (_, None) => Ok(Isolation::Namespaces),
        (IsolationRule::Required, Some(why)) => Err(format!(
            "{why}; evolution.episode.isolation = \"preferred\" runs trees without code of their own all the same"
        )),
        (IsolationRule::Preferred, Some(why)) if brings_code => Err(format!(
            "the tree brings code and cannot be isolated here ({why}); evolution.episode.isolation = \"off\" runs it on a \
             machine that is thrown away"
        )),
        (IsolationRule::Preferred, Some(_)) => Ok(Isolation::None),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn code_is_not_run_beside_this_machine_unless_somebody_said_so() {
        use IsolationRule::{Off, Preferred, Required};
        assert_eq!(decide(Required, true, None), Ok(Isolation::Namespaces));
        assert!(decide(Required, false, Some("no")).is_err());
        assert_eq!(decide(Preferred, false, Some("no")), Ok(Isolation::None));
        assert!(decide(Preferred, true, Some("no")).unwrap_err().contains("brings code"));
        assert_eq!(decide(Preferred, true, None), Ok(Isolation::Namespaces));
        assert_eq!(decide(Off, true, None), Ok(Isolation::None));
    }

    #[test]
    fn what_brings_code_is_told_from_what_is_only_read() {
        let tree = |value| Tree::from_json(&value).unwrap();
        let rules = json!([{"id": "a", "name": "rules", "config": {"text": "be brief"}}]);
        assert!(!brings_code(&tree(rules)));
        let code = json!([{"id": "a", "name": "code_extension", "config": {"name": "x", "code": "export default 1"}}]);
        assert!(brings_code(&tree(code.clone())));
        let permits = json!([{"id": "a", "name": "config", "config": {"data": {"permission": {"bash": "allow"}}}}]);
        assert!(brings_code(&tree(permits)));
        let mut disabled = code;
        disabled[0]["disabled"] = json!(true);
        assert!(!brings_code(&tree(disabled)));
    }
}
