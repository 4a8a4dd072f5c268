//! Rendering: one MachineConfig of many, by the operator's rules.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    ControllerConfig, EXTENSIONS, KernelType, MachineConfig, MachineConfigContent, Manifests, ObjectOrigin, RENDERED_PREFIX, Selector,
    WORKER, WithConfig, object,
};
use crate::{Config, Hashed, Invalid};

/// Characters of the hash in a rendered MachineConfig's name: as many as the operator's have.
pub(super) const NAME_HASH_CHARACTERS: usize = 32;

/// Reason why MachineConfigs cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// A MachineConfigPool names a rendered MachineConfig that is not there.
    #[error("{pool}: MachineConfigPool {name} serves {rendered}, which is not among the MachineConfigs")]
    NoSuchRendered {
        /// Location of the pool.
        pool: ObjectOrigin,
        name: String,
        /// The missing rendered MachineConfig.
        rendered: String,
    },
    /// An extension for the default kernel with another one.
    #[error("the extension kernel-devel is for the default kernel only; kernelType is {}", kernel_type.as_str())]
    KernelDevel { kernel_type: KernelType },
    /// An extension that the operator would refuse.
    #[error(
        "{origin}: MachineConfig {name}: spec.extensions: the operator has no extension {extension:?}, only {}; if your operator has it, add it to source.extensions in pool.toml",
        EXTENSIONS.join(", ")
    )]
    UnknownExtension {
        origin: ObjectOrigin,
        /// Name of the MachineConfig.
        name: String,
        extension: String,
    },
    /// Configs that are good each by itself, and not together.
    #[error("the MachineConfigs {names} do not merge into a valid Ignition config: {source}")]
    Merged { names: String, source: Invalid },
}

/// Result of rendering: one MachineConfig for a pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Rendered {
    /// Name in the form `rendered-<pool>-<hash>`.
    pub name: String,
    /// Its spec; `config` is always set.
    pub spec: MachineConfigContent,
    /// The image that nodes run from the start, in image mode.
    pub pre_built_image: Option<String>,
}

impl Rendered {
    /// Returns the Ignition config.
    #[must_use]
    pub fn config(&self) -> Config {
        self.spec.config.clone().unwrap_or_else(Config::empty)
    }

    /// Returns everything but its Ignition config.
    #[must_use]
    pub fn without_config(&self) -> Self {
        let spec = &self.spec;
        Self {
            name: self.name.clone(),
            spec: MachineConfigContent {
                config: None,
                kernel_arguments: spec.kernel_arguments.clone(),
                extensions: spec.extensions.clone(),
                fips: spec.fips,
                kernel_type: spec.kernel_type,
                os_image_url: spec.os_image_url.clone(),
                base_os_extensions_container_image: spec.base_os_extensions_container_image.clone(),
            },
            pre_built_image: self.pre_built_image.clone(),
        }
    }

    /// Returns the object, with this config instead of its own.
    #[must_use]
    pub fn object(&self, config: Value) -> Value {
        object(&self.name, &self.spec, config)
    }
}

/// The two rendered MachineConfigs of a pool.
#[derive(Debug, Clone)]
pub struct RenderedPool {
    /// Those that a node needs before it is approved.
    pub pre_approved: Rendered,
    pub full: Rendered,
}

/// Renders a pool; `None` if no MachineConfig is for it.
///
/// # Errors
/// [`RenderError`].
pub fn render_pool(manifests: &Manifests, pool: &str) -> Result<Option<RenderedPool>, RenderError> {
    let object = manifests.pools.iter().find(|object| object.name == pool);
    let default = Selector::for_pool(pool);
    let selected = select(&manifests.machine_configs, object.map_or(&default, |object| &object.selector));
    let controller = manifests.controller.clone().unwrap_or_default();
    let operators = match object.and_then(|object| Some((object, object.rendered.as_ref()?))) {
        None => None,
        Some((object, rendered)) => {
            let found = manifests.machine_configs.iter().find(|config| config.name == *rendered);
            Some(found.ok_or_else(|| RenderError::NoSuchRendered {
                pool: object.origin.clone(),
                name: object.name.clone(),
                rendered: rendered.clone(),
            })?)
        }
    };
    if selected.is_empty() && operators.is_none() {
        return Ok(None);
    }
    let needed: Vec<&MachineConfig> = selected
        .iter()
        .copied()
        .filter(|config| config.needed_before_node_approved)
        .collect();
    // Not of what the operator has rendered: it has refused what it does not know.
    if operators.is_none() {
        check_extensions(&selected, &manifests.extensions)?;
    }
    let pre_approved = render(&needed, &controller, pool)?;
    let full = match operators {
        Some(operators) => Rendered {
            name: operators.name.clone(),
            spec: operators.spec.clone(),
            pre_built_image: operators.pre_built_image.clone(),
        },
        None => render(&selected, &controller, pool)?,
    };
    Ok(Some(RenderedPool { pre_approved, full }))
}

/// Returns a pool's MachineConfigs in the order in which they are merged: those of role worker by name, then the others by name. Rendered
/// ones are results, not inputs.
fn select<'m>(configs: &'m [MachineConfig], selector: &Selector) -> Vec<&'m MachineConfig> {
    let mut selected: Vec<&MachineConfig> = configs
        .iter()
        .filter(|config| !config.name.starts_with(RENDERED_PREFIX) && selector.selects(&config.labels))
        .collect();
    selected.sort_by_key(|config| (config.role() != Some(WORKER), &config.name));
    selected
}

fn render(configs: &[&MachineConfig], controller: &ControllerConfig, pool: &str) -> Result<Rendered, RenderError> {
    let mut merged = Config::empty();
    for config in configs.iter().filter_map(|config| config.spec.config.as_ref()) {
        merged = over(merged, config.clone());
    }
    overwrite_by_default(&mut merged);
    let merged = merged.validated().map_err(|source| RenderError::Merged {
        names: configs.iter().map(|config| config.name.as_str()).collect::<Vec<_>>().join(", "),
        source,
    })?;
    // Some(…) of any MachineConfig counts, the last one that is not the default wins.
    let kernel_type = configs
        .iter()
        .rev()
        .map(|config| config.spec.kernel_type)
        .find(|kernel_type| *kernel_type != KernelType::Default)
        .unwrap_or_default();
    let mut seen = BTreeSet::new();
    let extensions: Vec<String> = configs
        .iter()
        .flat_map(|config| config.spec.extensions.iter().cloned())
        .filter(|extension| seen.insert(extension.clone()))
        .collect();
    if kernel_type != KernelType::Default && seen.contains("kernel-devel") {
        return Err(RenderError::KernelDevel { kernel_type });
    }
    let spec = MachineConfigContent {
        config: Some(merged),
        kernel_arguments: configs
            .iter()
            .flat_map(|config| config.spec.kernel_arguments.iter().cloned())
            .collect(),
        extensions,
        fips: configs.iter().any(|config| config.spec.fips),
        kernel_type,
        os_image_url: image(configs, &controller.os_image_url, |spec| &spec.os_image_url),
        base_os_extensions_container_image: image(configs, &controller.base_os_extensions_container_image, |spec| {
            &spec.base_os_extensions_container_image
        }),
    };
    let name = name(pool, &spec);
    let pre_built_image = configs.iter().rev().find_map(|config| config.pre_built_image.clone());
    Ok(Rendered {
        name,
        spec,
        pre_built_image,
    })
}

fn check_extensions(configs: &[&MachineConfig], others: &BTreeSet<String>) -> Result<(), RenderError> {
    let known = |extension: &&String| EXTENSIONS.contains(&extension.as_str()) || others.contains(*extension);
    for config in configs {
        if let Some(extension) = config.spec.extensions.iter().find(|extension| !known(extension)) {
            return Err(RenderError::UnknownExtension {
                origin: config.origin.clone(),
                name: config.name.clone(),
                extension: extension.clone(),
            });
        }
    }
    Ok(())
}

/// Merges a config over another as the operator does: Ignition's merge, but a file's new contents come with their own compression and
/// verification. Ignition would keep what the old contents had.
#[must_use]
pub fn over(mut parent: Config, child: Config) -> Config {
    let replaced: BTreeSet<&str> = child
        .list(["storage", "files"])
        .iter()
        .filter(|file| file.pointer("/contents/source").is_some())
        .filter_map(|file| file.get("path").and_then(Value::as_str))
        .collect();
    if !parent.list(["storage", "files"]).is_empty() && !replaced.is_empty() {
        for file in parent.list_mut(["storage", "files"]).into_iter().flatten() {
            if file.get("path").and_then(Value::as_str).is_some_and(|path| replaced.contains(path))
                && let Some(contents) = file.get_mut("contents").and_then(Value::as_object_mut)
            {
                contents.remove("compression");
                contents.remove("verification");
            }
        }
    }
    parent.merge(child)
}

/// Sets `overwrite` where it is not set: the operator overwrites any file. Ignition does so only if the config says it, and fails otherwise
/// if the image has the file already.
fn overwrite_by_default(config: &mut Config) {
    if config.list(["storage", "files"]).is_empty() {
        return;
    }
    for file in config.list_mut(["storage", "files"]).into_iter().flatten() {
        // Without contents there is nothing to overwrite with: Ignition refuses that.
        if file.pointer("/contents/source").is_some()
            && let Some(file) = file.as_object_mut()
        {
            file.entry("overwrite").or_insert(Value::Bool(true));
        }
    }
}

/// Returns the image of the last MachineConfig that names one and is not generated by the operator; otherwise that of the base. Without a
/// ControllerConfig, the base is that of the generated MachineConfigs.
fn image(configs: &[&MachineConfig], base: &str, of: impl Fn(&MachineConfigContent) -> &String) -> String {
    let last = |generated: bool| {
        configs
            .iter()
            .rev()
            .filter(|config| config.generated == generated)
            .map(|config| of(&config.spec))
            .find(|image| !image.is_empty())
            .cloned()
    };
    let given = || Some(base.to_owned()).filter(|base| !base.is_empty());
    last(false).or_else(given).or_else(|| last(true)).unwrap_or_default()
}

/// Returns a name that depends on the content, like the operator's; the hash is our own.
pub(super) fn name(pool: &str, spec: &MachineConfigContent) -> String {
    let object = WithConfig {
        object: &object("", spec, Value::Null),
        config: spec.config.as_ref().map(Config::value),
    };
    let hash: String = Hashed::json(&object)
        .unwrap_or_default()
        .chars()
        .take(NAME_HASH_CHARACTERS)
        .collect();
    format!("{RENDERED_PREFIX}{pool}-{hash}")
}

#[cfg(test)]
mod tests;
