//! `recipe`

use crate::config::{Table, section};

section! {
    /// How experience becomes updates. Without a recipe Reef only records.
    pub RecipeChoice in "recipe" {
        /// A built-in recipe's name, the dotted reference of one (`recipes.sao.recipe:SAORecipe`), or the path of a
        /// `recipe.toml`. `reef.recipe` is the same setting.
        implementation: Option<String>;
        /// The recipe's own settings. Keys beside `reef.recipe` in the section `reef` count as these.
        config: Table = {};
    }
}
