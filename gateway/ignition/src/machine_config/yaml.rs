//! Options for reading the YAML of manifests.

use serde_saphyr::Options;

/// Returns the options to read YAML as Kubernetes does, within bounds, and without its text in errors, which may hold secrets.
pub(super) fn yaml_options() -> Options {
    let mut options = Options::default();
    // `mode: 0644` is what people write, and what Kubernetes takes for 420.
    options.legacy_octal_numbers = true;
    options.with_snippet = false;
    options
}
