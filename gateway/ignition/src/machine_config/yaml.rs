//! YAML of manifests.

use serde_saphyr::Options;

/// How YAML is read: as Kubernetes reads it, within bounds, and without the text in errors, which may hold secrets.
pub(super) fn yaml_options() -> Options {
    let mut options = Options::default();
    // `mode: 0644` is what people write, and what Kubernetes takes for 420.
    options.legacy_octal_numbers = true;
    options.with_snippet = false;
    options
}
