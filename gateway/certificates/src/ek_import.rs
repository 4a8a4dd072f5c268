//! Import of a bundle into the folder of EK roots: the difference, and the file that holds what is added.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

use attest::tpm::ek_certificate::EkRootProblem;
use attest::{EkRoots, UnixTime};
use attest_system::clock::rfc3339;
use attest_system::files;

use super::Certificate;
use super::ek_bundle::{EkBundle, one_line};
use super::ek_roots::{self, EkCaRole, EkRootsFolder, EkRootsTooLarge};

/// First line of an imported file.
const HEADING: &str = "# attest-gateway ek-roots import";
/// Beginning of the name of each imported file.
const FILE_PREFIX: &str = "imported-";
/// Longest heading of an imported file, in bytes.
const HEADING_LIMIT_BYTES: u64 = 8 * 1024;
/// Maximum number of characters of the bundle's name in the name of a file.
const SLUG_CHARACTERS: usize = 40;
/// Number of hexadecimal digits of the bundle's SHA-256 in the name of a file.
const DIGEST_CHARACTERS: usize = 12;

/// Origin of an imported file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EkProvenance {
    /// Name of the bundle's file or folder.
    pub bundle: String,
    /// SHA-256 of the bundle.
    pub sha256: String,
    /// Time of the import, RFC 3339.
    pub imported: String,
}

/// A usable CA in the difference.
#[derive(Debug, Clone)]
pub struct PlannedCa {
    pub maker: String,
    pub role: EkCaRole,
    pub certificate: Certificate,
    /// Its file in the bundle; of one that is in the folder, its file there.
    pub file: String,
}

/// A part of the bundle that is not imported.
#[derive(Debug, Clone)]
pub struct RefusedCa {
    /// Manufacturer, if it is a certificate.
    pub maker: Option<String>,
    pub subject: Option<String>,
    /// SHA-256 of the certificate, if it is one.
    pub sha256: Option<String>,
    pub file: String,
    pub reason: String,
}

/// Difference between a bundle and the folder.
#[derive(Debug)]
pub struct EkImportPlan {
    /// In the bundle, and not in the folder.
    pub added: Vec<PlannedCa>,
    /// In the bundle and in the folder.
    pub present: Vec<PlannedCa>,
    /// In the folder from an earlier bundle of this name, and no longer in the bundle. An import leaves them there.
    pub dropped: Vec<PlannedCa>,
    pub refused: Vec<RefusedCa>,
}

impl EkProvenance {
    /// Reads the origin of a file; `None` if it was not imported.
    #[must_use]
    pub fn of_file(path: &Path) -> Option<Self> {
        let mut heading = Vec::new();
        files::open(path).ok()?.take(HEADING_LIMIT_BYTES).read_to_end(&mut heading).ok()?;
        let heading = String::from_utf8_lossy(&heading);
        let mut lines = heading.lines();
        if lines.next() != Some(HEADING) {
            return None;
        }
        let mut fields: BTreeMap<&str, &str> = BTreeMap::new();
        fields.extend(lines.map_while(|line| line.strip_prefix("# ")?.split_once(": ")));
        let field = |name: &str| fields.get(name).map(|value| (*value).to_owned());
        Some(Self {
            bundle: field("bundle")?,
            sha256: field("sha256")?,
            imported: field("imported")?,
        })
    }
}

impl EkImportPlan {
    /// Compares a bundle with the contents of the folder. A certificate is added if it is usable together with both.
    ///
    /// # Errors
    /// [`EkRootsTooLarge`], if the folder would be too large.
    pub fn new(bundle: EkBundle, folder: &EkRootsFolder, now: UnixTime) -> Result<Self, EkRootsTooLarge> {
        let in_folder: BTreeMap<String, PlannedCa> = folder
            .authorities()
            .map(|ca| (sha256(&ca.certificate), PlannedCa::from(ca)))
            .collect();
        let refused = bundle.refused.into_iter().map(|refusal| RefusedCa {
            maker: None,
            subject: None,
            sha256: None,
            file: refusal.file,
            reason: refusal.reason,
        });
        let mut plan = Self {
            added: Vec::new(),
            present: Vec::new(),
            dropped: Vec::new(),
            refused: refused.collect(),
        };
        let mut seen = BTreeSet::new();
        for found in bundle.found {
            let role = EkCaRole::by_issuer(&found.certificate);
            let maker = EkRoots::maker_of(&found.certificate);
            match (Certificate::parse(found.certificate), maker) {
                (Ok(certificate), Some(maker)) => {
                    let sha256 = sha256(&certificate);
                    if !seen.insert(sha256.clone()) {
                        continue;
                    }
                    if let Some(known) = in_folder.get(&sha256) {
                        plan.present.push(known.clone());
                        continue;
                    }
                    let candidate = PlannedCa {
                        maker,
                        role,
                        certificate,
                        file: found.file,
                    };
                    if now.as_secs() > candidate.certificate.not_after {
                        let reason = format!("expired on {}", rfc3339(candidate.certificate.not_after));
                        plan.refused.push(candidate.refused(reason));
                    } else {
                        plan.added.push(candidate);
                    }
                }
                (parsed, _) => plan.refused.push(RefusedCa {
                    maker: None,
                    subject: None,
                    sha256: None,
                    file: found.file,
                    reason: parsed.err().unwrap_or_else(|| "not an X.509 certificate".to_owned()),
                }),
            }
        }
        plan.refuse_unusable(folder)?;
        plan.dropped = dropped(&bundle.name, folder, &in_folder, &seen);
        Ok(plan)
    }

    /// Moves certificates that cannot be used to the refused ones.
    fn refuse_unusable(&mut self, folder: &EkRootsFolder) -> Result<(), EkRootsTooLarge> {
        let all = || folder.certificates.iter().chain(self.added.iter().map(|ca| &ca.certificate.der));
        let (_, problems) = ek_roots::sorted(all().cloned(), &folder.named_roots);
        let problems: BTreeMap<String, EkRootProblem> = problems.into_iter().map(|problem| (problem.sha256, problem.problem)).collect();
        EkRootsTooLarge::check(ek_roots::pem_of_usable(all(), |sha256| problems.contains_key(sha256)).len())?;
        for candidate in std::mem::take(&mut self.added) {
            match problems.get(&sha256(&candidate.certificate)) {
                None => self.added.push(candidate),
                Some(problem) => {
                    let reason = format!("{problem}{}", ek_roots::advice(problem));
                    self.refused.push(candidate.refused(reason));
                }
            }
        }
        Ok(())
    }

    /// Returns the number of certificates that would be added, by manufacturer.
    #[must_use]
    pub fn added_by_maker(&self) -> BTreeMap<&str, usize> {
        let mut makers = BTreeMap::new();
        for ca in &self.added {
            *makers.entry(ca.maker.as_str()).or_default() += 1;
        }
        makers
    }

    /// Returns the file for the added certificates: PEM, with comments that name the bundle and each certificate.
    #[must_use]
    pub fn file_text(&self, provenance: &EkProvenance) -> String {
        let EkProvenance { bundle, sha256, imported } = provenance;
        let mut text = format!("{HEADING}\n# bundle: {bundle}\n# sha256: {sha256}\n# imported: {imported}\n");
        for PlannedCa {
            maker,
            role,
            certificate,
            file,
        } in &self.added
        {
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "\n# maker: {}\n# {}: {}\n# sha256: {}\n# file: {}\n{}",
                one_line(maker),
                role.label(),
                one_line(&certificate.subject),
                certificate.fingerprint,
                one_line(file),
                certificate.pem()
            );
        }
        text
    }
}

impl PlannedCa {
    fn refused(self, reason: String) -> RefusedCa {
        RefusedCa {
            maker: Some(self.maker),
            sha256: Some(sha256(&self.certificate)),
            subject: Some(self.certificate.subject),
            file: self.file,
            reason,
        }
    }
}

impl From<ek_roots::EkCa<'_>> for PlannedCa {
    fn from(ca: ek_roots::EkCa<'_>) -> Self {
        Self {
            maker: ca.maker,
            role: ca.role,
            certificate: ca.certificate,
            file: ca.file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        }
    }
}

/// Returns a free name in the folder for a file with certificates of a bundle.
#[must_use]
pub fn free_file(folder: &Path, provenance: &EkProvenance) -> PathBuf {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let slug: String = provenance.bundle.chars().take(SLUG_CHARACTERS).map(plain).collect();
    let digest: String = provenance.sha256.chars().take(DIGEST_CHARACTERS).collect();
    let name = format!("{FILE_PREFIX}{}-{digest}", slug.trim_matches('-'));
    // Certificates of this bundle may have been removed since its first import.
    let numbered = (2_u64..).map(|number| folder.join(format!("{name}-{number}.pem")));
    let mut names = std::iter::once(folder.join(format!("{name}.pem"))).chain(numbered);
    names
        .find(|path| path.symlink_metadata().is_err())
        .unwrap_or_else(|| folder.join(format!("{name}.pem")))
}

/// Returns whether a file is one that an import had not completed when it was killed ([`files::temporary_file`]).
#[must_use]
pub fn is_leftover(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.strip_prefix('.').is_some_and(|name| name.starts_with(FILE_PREFIX)) && name.ends_with(".pem.part"))
}

fn sha256(certificate: &Certificate) -> String {
    certificate.fingerprint.to_string()
}

/// Returns the certificates in the folder that came from a bundle of this name, and are not among those seen in it.
fn dropped(bundle: &str, folder: &EkRootsFolder, in_folder: &BTreeMap<String, PlannedCa>, seen: &BTreeSet<String>) -> Vec<PlannedCa> {
    let mut is_of_bundle: BTreeMap<&Path, bool> = BTreeMap::new();
    let mut dropped = Vec::new();
    for ca in folder.authorities() {
        let is_of_bundle = *is_of_bundle
            .entry(ca.file)
            .or_insert_with(|| EkProvenance::of_file(ca.file).is_some_and(|provenance| provenance.bundle == bundle));
        let sha256 = sha256(&ca.certificate);
        if is_of_bundle && !seen.contains(&sha256) {
            dropped.extend(in_folder.get(&sha256).cloned());
        }
    }
    dropped
}
