//! Advice on refusals: one table of codes for each module.

/// Explanation of one refusal code: its name, its meaning, and what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice {
    /// Stable identifier in kebab-case.
    pub code: &'static str,
    /// The meaning in a few words.
    pub title: &'static str,
    /// The step that the person at the console, or the administrator, should take.
    pub next_step: &'static str,
}

/// A table of codes: a constant for each, and `ADVICE` with all of them, which the comment before the first describes.
macro_rules! advice {
    ($(#[$about:meta])* $($vis:vis $name:ident = $code:literal, $title:literal, $next:literal;)*) => {
        $(#[doc = $title] $vis const $name: Advice = Advice { code: $code, title: $title, next_step: $next };)*
        $(#[$about])*
        pub const ADVICE: &[Advice] = &[$($name),*];
    };
}
pub(crate) use advice;
