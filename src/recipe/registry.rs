//! The recipes that come with the program, and the names they go by.

/// A built-in recipe.
pub(super) struct BuiltIn {
    pub(super) name: &'static str,
    /// The package of the upstream reference, `recipes.<package>.recipe:<Class>`.
    pub(super) text: &'static str,
}

pub(super) const BUILT_IN: [BuiltIn; 5] = [
    BuiltIn {
        name: "none",
        text: include_str!("../../recipes/none/recipe.toml"),
    },
    BuiltIn {
        name: "sao",
        text: include_str!("../../recipes/sao/recipe.toml"),
    },
    BuiltIn {
        name: "grpo",
        text: include_str!("../../recipes/grpo/recipe.toml"),
    },
    BuiltIn {
        name: "sft",
        text: include_str!("../../recipes/sft/recipe.toml"),
    },
    BuiltIn {
        name: "evolve",
        text: include_str!("../../recipes/evolve/recipe.toml"),
    },
];

/// The built-in recipe a reference names: its own name, `recipe` for the record-only one, or a dotted upstream
/// reference such as `recipes.sao.recipe:SAORecipe`.
pub(super) fn find(reference: &str) -> Option<&'static BuiltIn> {
    let name = match reference {
        "recipe" | "reef.recipe:Recipe" | "reef.recipe.base:Recipe" => "none",
        // The upstream project evolves harnesses under these names.
        "reefine"
        | "harness_evolve"
        | "recipes.reefine.recipe:ReefineRecipe"
        | "recipes.harness_evolve.recipe:CordisRecipe" => "evolve",
        other => other
            .strip_prefix("recipes.")
            .and_then(|rest| rest.split_once(".recipe:"))
            .filter(|(package, class)| class.eq_ignore_ascii_case(&format!("{package}Recipe")))
            .map_or(other, |(package, _)| package),
    };
    BUILT_IN.iter().find(|built_in| built_in.name == name)
}

/// The names, for error messages.
pub(super) fn names() -> String {
    BUILT_IN
        .iter()
        .map(|built_in| built_in.name)
        .collect::<Vec<_>>()
        .join(", ")
}
