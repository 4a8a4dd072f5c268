//! Processes that use a store, and the schemas that they know.

#[cfg(any(feature = "kubernetes", feature = "etcd"))]
use super::StoreError;
use super::schema::StoreSchema;

/// A process that uses a shared store: a gateway, or the controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreUser {
    pub host: String,
    pub release: String,
    /// Number of the newest schema that it knows.
    pub schema: i64,
}

/// Schema of a store, and who uses it. The users of an embedded store are not known here: the lock on the attestation log tells of a
/// gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaStatus {
    pub schema: StoreSchema,
    pub users: Vec<StoreUser>,
}

/// Checks that all processes that use a store know this schema.
#[cfg(any(feature = "kubernetes", feature = "etcd"))]
pub(super) fn check_users(place: &str, users: &[StoreUser], schema: StoreSchema) -> Result<(), StoreError> {
    let behind: Vec<String> = users
        .iter()
        .filter(|user| user.schema < schema.number)
        .map(|user| format!("{} (release {})", user.host, user.release))
        .collect();
    match behind.is_empty() {
        true => Ok(()),
        false => Err(StoreError::Behind {
            place: place.to_owned(),
            schema: schema.number,
            users: behind.join(", "),
        }),
    }
}
