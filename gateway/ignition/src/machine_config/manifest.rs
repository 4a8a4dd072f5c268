//! Manifests: files with objects of the Machine Config Operator, YAML (several documents too) or JSON.

use std::collections::BTreeMap;
use std::path::Path;

use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::Spanned;

use super::locate::line_of;
use super::yaml::yaml_options;
use super::{
    ControllerConfig, GENERATED_ANNOTATION, KernelType, MachineConfig, MachineConfigContent, MachineConfigPool, Manifests,
    NEEDED_ANNOTATION, ObjectOrigin, PRE_BUILT_IMAGE_ANNOTATION, RENDERED_PREFIX, ROLE_LABEL, Selector,
};
use crate::{Config, NotAConfig, without_values};

const API_VERSION: &str = "machineconfiguration.openshift.io/v1";
/// Longest name of an object in Kubernetes.
const NAME_LIMIT_CHARACTERS: usize = 253;

/// Reason why a manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// Neither YAML nor JSON.
    #[error("{origin}: {problem}")]
    Syntax { origin: ObjectOrigin, problem: String },
    /// An object of another kind.
    #[error(
        "{origin}: kind {kind:?} is not read: MachineConfig, MachineConfigPool, ControllerConfig (machineconfiguration.openshift.io/v1) and lists of them are"
    )]
    Kind { origin: ObjectOrigin, kind: String },
    /// An object of image mode, which says something of one state of the cluster only.
    #[error(
        "{origin}: {kind} is not supported: the image of a new node depends on the state of image builds and of the cluster; use the Machine Config Server as [upstream], or name the image in the annotation {PRE_BUILT_IMAGE_ANNOTATION} of a MachineConfig"
    )]
    ImageMode { origin: ObjectOrigin, kind: String },
    /// An object that cannot be used.
    #[error("{origin}: {kind} {name}: {place}: {problem}")]
    Object {
        origin: ObjectOrigin,
        kind: &'static str,
        name: String,
        place: String,
        problem: String,
    },
    /// Two objects of one name.
    #[error("{second}: {kind} {name} is already in {first}")]
    Twice {
        /// Kind of both objects.
        kind: &'static str,
        name: String,
        /// Location of the first object.
        first: ObjectOrigin,
        /// Location of the second object.
        second: ObjectOrigin,
    },
}

impl Manifests {
    /// Reads one file's text into what was read so far.
    ///
    /// # Errors
    /// [`ManifestError`], with file and line.
    pub fn read(&mut self, file: &Path, text: &str) -> Result<(), ManifestError> {
        let json = file.extension().is_some_and(|extension| extension == "json");
        let documents = if json { read_json(file, text)? } else { read_yaml(file, text)? };
        for (number, (line, value)) in documents.into_iter().enumerate() {
            let source = ObjectPlace {
                file,
                text,
                document: number,
                within: String::new(),
            };
            self.object(value, line, &source)?;
        }
        Ok(())
    }

    fn object(&mut self, value: Value, line: u64, source: &ObjectPlace<'_>) -> Result<(), ManifestError> {
        let origin = ObjectOrigin {
            file: source.file.to_owned(),
            line,
        };
        let field = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (field("apiVersion"), field("kind"));
        match (api_version, kind) {
            ("v1", "List") | (API_VERSION, "MachineConfigList" | "MachineConfigPoolList" | "ControllerConfigList") => {
                let Value::Object(mut list) = value else { return Ok(()) };
                let items = match list.remove("items") {
                    Some(Value::Array(items)) => items,
                    _ => {
                        return Err(ManifestError::Syntax {
                            origin,
                            problem: "a list has no items".to_owned(),
                        });
                    }
                };
                for (number, item) in items.into_iter().enumerate() {
                    let within = format!("{}items.{number}.", source.within);
                    let line = source.line(&within).unwrap_or(line);
                    self.object(item, line, &ObjectPlace { within, ..*source })?;
                }
                Ok(())
            }
            (API_VERSION, "MachineConfig") => {
                let config = machine_config(value, &origin, source)?;
                twice(
                    "MachineConfig",
                    &config.name,
                    &origin,
                    self.machine_configs.iter().map(|other| (&other.name, &other.origin)),
                )?;
                self.machine_configs.push(config);
                Ok(())
            }
            (API_VERSION, "MachineConfigPool") => {
                let pool = machine_config_pool(value, &origin, source)?;
                twice(
                    "MachineConfigPool",
                    &pool.name,
                    &origin,
                    self.pools.iter().map(|other| (&other.name, &other.origin)),
                )?;
                self.pools.push(pool);
                Ok(())
            }
            (API_VERSION, "ControllerConfig") => {
                self.controller = Some(controller_config(value, &origin, source)?);
                Ok(())
            }
            (API_VERSION, "MachineOSConfig" | "MachineOSBuild" | "MachineOSConfigList" | "MachineOSBuildList") => {
                Err(ManifestError::ImageMode {
                    origin,
                    kind: kind.to_owned(),
                })
            }
            _ => Err(ManifestError::Kind {
                origin,
                kind: format!("{api_version} {kind}").chars().take(NAME_LIMIT_CHARACTERS).collect(),
            }),
        }
    }
}

/// Location of an object, for errors in it.
struct ObjectPlace<'t> {
    file: &'t Path,
    text: &'t str,
    document: usize,
    within: String,
}

impl ObjectPlace<'_> {
    fn line(&self, place: &str) -> Option<u64> {
        line_of(self.text, self.document, place)
    }

    /// Returns an error in an object's field.
    fn field_error(&self, origin: &ObjectOrigin, kind: &'static str, name: &str, place: &str, problem: String) -> ManifestError {
        ManifestError::Object {
            origin: ObjectOrigin {
                file: origin.file.clone(),
                line: self.line(&format!("{}{place}", self.within)).unwrap_or(origin.line),
            },
            kind,
            name: name.to_owned(),
            place: place.to_owned(),
            problem,
        }
    }
}

fn twice<'o>(
    kind: &'static str,
    name: &str,
    second: &ObjectOrigin,
    others: impl Iterator<Item = (&'o String, &'o ObjectOrigin)>,
) -> Result<(), ManifestError> {
    for (other, first) in others {
        if other == name {
            return Err(ManifestError::Twice {
                kind,
                name: name.to_owned(),
                first: first.clone(),
                second: second.clone(),
            });
        }
    }
    Ok(())
}

fn read_yaml(file: &Path, text: &str) -> Result<Vec<(u64, Value)>, ManifestError> {
    // Much quicker, and without a budget for each document: with one that is too large, or wrong, all are read one by one.
    if let Ok(documents) = serde_saphyr::from_multiple_with_options::<Spanned<Value>>(text, yaml_options()) {
        let documents = documents.into_iter();
        return Ok(documents.map(|document| (document.referenced.line(), document.value)).collect());
    }
    let mut reader = text.as_bytes();
    serde_saphyr::read_with_options::<_, Spanned<Value>>(&mut reader, yaml_options())
        .map(|document| match document {
            Ok(document) => Ok((document.referenced.line(), document.value)),
            Err(error) => Err(ManifestError::Syntax {
                origin: ObjectOrigin {
                    file: file.to_owned(),
                    line: error.location().map_or(0, |location| location.line()),
                },
                problem: format!("not YAML: {}", without_values(&error.to_string())),
            }),
        })
        .collect()
}

fn read_json(file: &Path, text: &str) -> Result<Vec<(u64, Value)>, ManifestError> {
    let mut documents = Vec::new();
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    loop {
        let before = stream.byte_offset();
        let Some(document) = stream.next() else { return Ok(documents) };
        let blank = text.get(before..).map_or(0, |rest| rest.len() - rest.trim_start().len());
        let line = 1 + text.as_bytes().iter().take(before + blank).filter(|byte| **byte == b'\n').count();
        match document {
            Ok(value) => documents.push((u64::try_from(line).unwrap_or(0), value)),
            Err(error) => {
                return Err(ManifestError::Syntax {
                    origin: ObjectOrigin {
                        file: file.to_owned(),
                        line: u64::try_from(error.line()).unwrap_or(0),
                    },
                    problem: format!("not JSON: {}", without_values(&error.to_string())),
                });
            }
        }
    }
}

#[derive(Debug, Deserialize)]
struct MachineConfigObject<S> {
    metadata: ManifestMetadata,
    #[serde(default = "Option::default")]
    spec: Option<S>,
    status: Option<PoolStatus>,
}

#[derive(Debug, Deserialize)]
struct ManifestMetadata {
    name: String,
    #[serde(default)]
    labels: Option<BTreeMap<String, String>>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

/// Unknown fields are refused: a misspelt one would be missing on every node.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct SpecFile {
    config: Option<Value>,
    kernel_arguments: Option<Vec<String>>,
    extensions: Option<Vec<String>>,
    fips: Option<bool>,
    kernel_type: Option<KernelType>,
    #[serde(rename = "osImageURL")]
    os_image_url: Option<String>,
    #[serde(rename = "baseOSExtensionsContainerImage")]
    base_os_extensions_container_image: Option<String>,
    needed_before_node_approved: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PoolSpec {
    machine_config_selector: Option<Selector>,
    configuration: Option<ObjectHead>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct PoolStatus {
    configuration: Option<ObjectHead>,
    updated_machine_count: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ObjectHead {
    name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ControllerSpec {
    #[serde(rename = "osImageURL")]
    os_image_url: Option<String>,
    #[serde(rename = "baseOSContainerImage")]
    base_os_container_image: Option<String>,
    #[serde(rename = "baseOSExtensionsContainerImage")]
    base_os_extensions_container_image: Option<String>,
    #[serde(rename = "kubeAPIServerServingCAData")]
    kubelet_ca: Option<String>,
    #[serde(rename = "cloudProviderCAData")]
    cloud_ca: Option<String>,
}

/// Reads an object's fields; an error names the one that is wrong.
fn object<S: serde::de::DeserializeOwned>(
    value: &Value,
    kind: &'static str,
    origin: &ObjectOrigin,
    source: &ObjectPlace<'_>,
) -> Result<MachineConfigObject<S>, ManifestError> {
    let name = value.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("without a name");
    let object: MachineConfigObject<S> = serde_path_to_error::deserialize(value).map_err(|error| {
        // `spec.config[3]` in the words that places have elsewhere.
        let place = error.path().to_string().replace('[', ".").replace(']', "");
        source.field_error(origin, kind, name, &place, without_values(&error.inner().to_string()))
    })?;
    let named = &object.metadata.name;
    if named.is_empty()
        || named.len() > NAME_LIMIT_CHARACTERS
        || !named
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
    {
        let problem = "a name has lower-case letters, digits, '-' and '.' only, at most 253".to_owned();
        return Err(source.field_error(origin, kind, "without a name", "metadata.name", problem));
    }
    Ok(object)
}

fn machine_config(mut value: Value, origin: &ObjectOrigin, source: &ObjectPlace<'_>) -> Result<MachineConfig, ManifestError> {
    const KIND: &str = "MachineConfig";
    let ignition = value.pointer_mut("/spec/config").map(Value::take);
    let MachineConfigObject { metadata, spec, .. } = object::<SpecFile>(&value, KIND, origin, source)?;
    let spec = spec.unwrap_or_default();
    let wrong = |place: &str, problem: String| source.field_error(origin, KIND, &metadata.name, place, problem);
    let labels = metadata.labels.unwrap_or_default();
    if !labels.contains_key(ROLE_LABEL) && !metadata.name.starts_with(RENDERED_PREFIX) {
        return Err(wrong(
            "metadata.labels",
            format!("no label {ROLE_LABEL}: it would belong to no pool"),
        ));
    }
    let annotations = metadata.annotations.unwrap_or_default();
    let generated = annotations.get(GENERATED_ANNOTATION).is_some_and(|version| !version.is_empty());
    let annotated = match annotations.get(NEEDED_ANNOTATION).map(String::as_str) {
        None => None,
        Some("true") => Some(true),
        Some("false") => Some(false),
        Some(_) => {
            let problem = format!("{NEEDED_ANNOTATION} is \"true\" or \"false\"");
            return Err(wrong("metadata.annotations", problem));
        }
    };
    if let Some((place, mode)) = ignition.as_ref().and_then(special_mode) {
        return Err(wrong(
            &format!("spec.config.{place}"),
            format!("the operator refuses the mode {mode:#o}: at most 0o777"),
        ));
    }
    let config = match ignition {
        // The operator takes an empty config for none, so that a MachineConfig can have kernel arguments only.
        None | Some(Value::Null) => None,
        Some(Value::Object(map)) if map.is_empty() => None,
        Some(ignition) => Some(Config::from_value(ignition).map_err(|error| {
            let (place, problem) = place_of(error);
            wrong(&format!("spec.config.{place}"), problem)
        })?),
    };
    Ok(MachineConfig {
        pre_built_image: annotations
            .get(PRE_BUILT_IMAGE_ANNOTATION)
            .filter(|image| !image.is_empty())
            .cloned(),
        needed_before_node_approved: spec.needed_before_node_approved.or(annotated).unwrap_or(generated),
        generated,
        labels,
        spec: MachineConfigContent {
            config,
            kernel_arguments: spec.kernel_arguments.unwrap_or_default(),
            extensions: spec.extensions.unwrap_or_default(),
            fips: spec.fips.unwrap_or_default(),
            kernel_type: spec.kernel_type.unwrap_or_default(),
            os_image_url: spec.os_image_url.unwrap_or_default(),
            base_os_extensions_container_image: spec.base_os_extensions_container_image.unwrap_or_default(),
        },
        origin: origin.clone(),
        name: metadata.name,
    })
}

/// Returns the place of an error in a config, and the problem.
fn place_of(error: NotAConfig) -> (String, String) {
    match error {
        NotAConfig::Invalid(invalid) => (invalid.place, invalid.problem),
        NotAConfig::Spec2(refused) => (refused.place, refused.problem),
        NotAConfig::UnknownKey { version, key } => (
            key.trim_start_matches("$.").to_owned(),
            format!("Ignition {version} does not support it: a node would silently boot without it"),
        ),
        NotAConfig::Field { place, problem } => (place, problem),
        error @ NotAConfig::Version { .. } => ("ignition.version".to_owned(), error.to_string()),
        error @ (NotAConfig::Empty | NotAConfig::Parse(_)) => (String::new(), error.to_string()),
    }
}

/// Returns the first file whose mode has more than permission bits. Looks at the object as written: a config read as a version before 3.6
/// has lost those bits, like in Ignition.
fn special_mode(config: &Value) -> Option<(String, i64)> {
    let files = config.pointer("/storage/files")?.as_array()?;
    files.iter().enumerate().find_map(|(number, file)| {
        let mode = file.get("mode")?.as_i64()?;
        (mode > 0o777).then(|| (format!("storage.files.{number}.mode"), mode))
    })
}

fn machine_config_pool(value: Value, origin: &ObjectOrigin, source: &ObjectPlace<'_>) -> Result<MachineConfigPool, ManifestError> {
    const KIND: &str = "MachineConfigPool";
    let MachineConfigObject { metadata, spec, status } = object::<PoolSpec>(&value, KIND, origin, source)?;
    let (spec, status) = (spec.unwrap_or_default(), status.unwrap_or_default());
    let Some(selector) = spec.machine_config_selector else {
        let problem = "no machineConfigSelector: it would select nothing".to_owned();
        return Err(source.field_error(origin, KIND, &metadata.name, "spec.machineConfigSelector", problem));
    };
    // The newest config is for new nodes once one node has it for good, as in the Machine Config Server.
    let updated = status.updated_machine_count.unwrap_or(0) > 0;
    let configuration = if updated {
        spec.configuration
    } else {
        status.configuration.or(spec.configuration)
    };
    Ok(MachineConfigPool {
        name: metadata.name,
        selector,
        rendered: configuration.and_then(|named| named.name).filter(|name| !name.is_empty()),
        origin: origin.clone(),
    })
}

fn controller_config(value: Value, origin: &ObjectOrigin, source: &ObjectPlace<'_>) -> Result<ControllerConfig, ManifestError> {
    const KIND: &str = "ControllerConfig";
    let MachineConfigObject { metadata, spec, .. } = object::<ControllerSpec>(&value, KIND, origin, source)?;
    let spec = spec.unwrap_or_default();
    let bundle = |field: &str, text: Option<String>| {
        text.filter(|text| !text.is_empty())
            .map(|text| BASE64.decode(text.as_bytes()))
            .transpose()
            .map_err(|_| source.field_error(origin, KIND, &metadata.name, &format!("spec.{field}"), "not base64".to_owned()))
    };
    let base = [spec.base_os_container_image, spec.os_image_url];
    Ok(ControllerConfig {
        os_image_url: base.into_iter().flatten().find(|image| !image.is_empty()).unwrap_or_default(),
        base_os_extensions_container_image: spec.base_os_extensions_container_image.unwrap_or_default(),
        kubelet_ca: bundle("kubeAPIServerServingCAData", spec.kubelet_ca)?,
        cloud_ca: bundle("cloudProviderCAData", spec.cloud_ca)?,
    })
}

#[cfg(test)]
mod tests;
