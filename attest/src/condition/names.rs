//! Check of the claims that a condition names. A misspelt name would refuse each machine, and only when it boots.
//!
//! A condition sees the claims as a record has them, so the schema of the attestation log has all names.

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, operators};
use serde_json::Value;

use super::cel::CLAIMS;
use crate::claims::BOOT;

/// Schema of the attestation log.
const SCHEMA: &str = include_str!("../../../docs/attestation-log.schema.json");

/// Checks that each claim that an expression names can exist. The parts of a measured boot are not among them: no record has those.
///
/// # Errors
/// The first name that does not exist, and the ones that do in its place.
pub(super) fn check(expression: &IdedExpr) -> Result<(), String> {
    let document: Value = serde_json::from_str(SCHEMA).map_err(|error| error.to_string())?;
    let schema = ClaimSchema(&document);
    let claims = Claim {
        path: CLAIMS.to_owned(),
        schemas: schema.expand(document.pointer("/$defs/claims")),
        schema,
    };
    let mut known = vec![(CLAIMS.to_owned(), Some(claims))];
    visit(expression, &mut known).map(drop)
}

/// The schema, in which references are resolved.
#[derive(Clone, Copy)]
struct ClaimSchema<'s>(&'s Value);

/// A claim, with the alternatives of its schema.
#[derive(Clone)]
struct Claim<'s> {
    path: String,
    schemas: Vec<&'s Value>,
    schema: ClaimSchema<'s>,
}

/// ClaimVariables with the claims that they stand for, as far as those are known.
type ClaimVariables<'s> = Vec<(String, Option<Claim<'s>>)>;

impl<'s> ClaimSchema<'s> {
    /// Returns the alternatives of a schema, with references resolved.
    fn expand(self, schema: Option<&'s Value>) -> Vec<&'s Value> {
        let Some(schema) = schema else { return Vec::new() };
        if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
            return self.expand(target.strip_prefix('#').and_then(|target| self.0.pointer(target)));
        }
        match schema.get("oneOf").and_then(Value::as_array) {
            Some(alternatives) => alternatives.iter().flat_map(|alternative| self.expand(Some(alternative))).collect(),
            None => vec![schema],
        }
    }
}

impl<'s> Claim<'s> {
    fn member(&self, name: &str) -> Result<Self, String> {
        let of_name = |schema: &&'s Value| {
            let named = schema.get("properties").and_then(|members| members.get(name));
            named.or_else(|| schema.get("additionalProperties").filter(|others| others.is_object()))
        };
        let path = format!("{}.{name}", self.path);
        let found = self.schemas.iter().filter_map(of_name);
        let schemas: Vec<_> = found.flat_map(|schema| self.schema.expand(Some(schema))).collect();
        match schemas.is_empty() {
            false => Ok(Self {
                path,
                schemas,
                schema: self.schema,
            }),
            true => Err(format!("{path} does not exist; {} has {}", self.path, self.members())),
        }
    }

    fn members(&self) -> String {
        let members = self.schemas.iter().filter_map(|schema| schema.get("properties")?.as_object());
        let mut names: Vec<&str> = members.flat_map(|members| members.keys().map(String::as_str)).collect();
        names.sort_unstable();
        match names.is_empty() {
            true => "no members".to_owned(),
            false => names.join(", "),
        }
    }

    /// Returns an element of the list that it is. A map is not followed: its keys are its elements.
    fn element(&self) -> Option<Self> {
        let items = self.schemas.iter().filter_map(|schema| schema.get("items"));
        let schemas: Vec<_> = items.flat_map(|schema| self.schema.expand(Some(schema))).collect();
        let path = format!("{}[]", self.path);
        (!schemas.is_empty()).then_some(Self {
            path,
            schemas,
            schema: self.schema,
        })
    }
}

/// Checks a node and all below it. Returns the claim that it stands for, if it stands for one.
fn visit<'s>(node: &IdedExpr, known: &mut ClaimVariables<'s>) -> Result<Option<Claim<'s>>, String> {
    match &node.expr {
        Expr::Ident(name) => Ok(known
            .iter()
            .rev()
            .find(|(variable, _)| variable == name)
            .and_then(|(_, claim)| claim.clone())),
        Expr::Select(select) => match visit(&select.operand, known)? {
            Some(claim) if select.field != BOOT => claim.member(&select.field).map(Some),
            _ => Ok(None),
        },
        Expr::Call(call) => visit_call(call, known),
        Expr::Comprehension(over) => visit_comprehension(over, known).map(|()| None),
        Expr::List(list) => visit_all(&list.elements, known).map(|()| None),
        Expr::Literal(_) | Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => Ok(None),
    }
}

fn visit_all<'n>(nodes: impl IntoIterator<Item = &'n IdedExpr>, known: &mut ClaimVariables<'_>) -> Result<(), String> {
    nodes.into_iter().try_for_each(|node| visit(node, known).map(drop))
}

fn visit_call<'s>(call: &CallExpr, known: &mut ClaimVariables<'s>) -> Result<Option<Claim<'s>>, String> {
    let (operators::INDEX, [of, index]) = (call.func_name.as_str(), call.args.as_slice()) else {
        return visit_all(call.args.iter().chain(call.target.as_deref()), known).map(|()| None);
    };
    let claim = visit(of, known)?;
    match (claim, &index.expr) {
        (Some(claim), Expr::Literal(LiteralValue::String(name))) => claim.member(name.inner()).map(Some),
        (Some(claim), Expr::Literal(_)) => Ok(claim.element()),
        _ => visit(index, known).map(|_| None),
    }
}

fn visit_comprehension(over: &ComprehensionExpr, known: &mut ClaimVariables<'_>) -> Result<(), String> {
    let range = visit(&over.iter_range, known)?;
    visit(&over.accu_init, known)?;
    let outer = known.len();
    known.push((over.accu_var.clone(), None));
    known.push((over.iter_var.clone(), range.and_then(|range| range.element())));
    let inner: [&IdedExpr; 3] = [&over.loop_cond, &over.loop_step, &over.result];
    let checked = visit_all(inner, known);
    known.truncate(outer);
    checked
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use crate::condition::Condition;

    #[track_caller]
    fn check(condition: &str, expect: Result<(), &str>) {
        let checked = Condition::parse(condition).unwrap().check(|_| Some(BTreeSet::from([4, 7])));
        assert_eq!(checked, expect.map_err(str::to_owned), "{condition}");
    }

    #[test]
    fn accepts_claims_of_the_schema() {
        for condition in [
            "claims.identity == 'tpm:a'",
            "claims.tpm.pcrs['7'] in ['a', 'b']",
            "claims['tpm']['pcr_bank'] == 'sha256'",
            "has(claims.tpm.endorsed_by.root) && claims.tpm.endorsed_by.root.root_subject == 'CN=a'",
            "claims.tpm.endorsed_by == 'allowlist'",
            "has(claims.gcp) ? claims.gcp.instance.zone == 'a' : has(claims.token)",
            "claims.gcp.licenses.exists(license, license == '1')",
            "claims.kinds[0] == 'tpm'",
            "claims.tpm.boot.images.all(image, image == 'a')",
            "claims.tpm.pcrs.all(index, index == '7')",
            "claims.aws_nitro_tpm.pcrs['4'] == 'a'",
        ] {
            check(condition, Ok(()));
        }
    }

    #[test]
    fn rejects_claims_that_cannot_exist() {
        for (condition, expect) in [
            (
                "claims.tpm.endorsed_by.rooot.root_subject == ''",
                "claims.tpm.endorsed_by.rooot does not exist; claims.tpm.endorsed_by has gcp_instance, root",
            ),
            (
                "!has(claims.token) || claims.gcp.instance.zones == 'a'",
                "claims.gcp.instance.zones does not exist; claims.gcp.instance has instance_id, instance_name, project_id, project_number, zone",
            ),
            (
                "claims.gcp.service_account['mail'] == 'a'",
                "claims.gcp.service_account.mail does not exist; claims.gcp.service_account has email, id",
            ),
            (
                "claims.gcp.licenses.exists(license, license.id == '1')",
                "claims.gcp.licenses[].id does not exist; claims.gcp.licenses[] has no members",
            ),
            (
                "claims.kinds[0].name == 'tpm'",
                "claims.kinds[].name does not exist; claims.kinds[] has no members",
            ),
            (
                "claims.aws_sts.role.contains('a') && 'x' in claims.pool.names",
                "claims.pool.names does not exist; claims.pool has no members",
            ),
        ] {
            check(condition, Err(expect));
        }
        let error = Condition::parse("has(claims.tmp)").unwrap().check(|_| None).unwrap_err();
        assert!(
            error.starts_with("claims.tmp does not exist; claims has aws_identity_document, "),
            "{error}"
        );
    }
}
