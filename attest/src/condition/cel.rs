//! The library `cel`: parsing, a check of what conditions may have, and evaluation.
//!
//! The library has two parsers; this uses the hand-written one: the generated one recurses some 100 KiB of stack for each bracket.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use cel::common::ast::{CallExpr, ComprehensionExpr, Expr, IdedExpr, LiteralValue, SelectExpr, operators};
use cel::objects::Key;
use cel::parser::PrattParser;
use cel::{Context, Env, Value};

use super::ConditionError;
use super::booted::BootMention;
use super::source::OPENINGS_LIMIT;
use super::values::{LIST_LIMIT, VALUES_LIMIT};
use crate::claims::{BOOT, is_what_was_booted};

/// Most nodes of an expression, those of macros too.
pub const NODES_LIMIT: usize = 768;

/// Maximum depth of nested nodes: the recursion of the evaluation.
pub const DEPTH_LIMIT: usize = 40;

/// Maximum steps of an evaluation: each is a node that is evaluated, a value that is copied or compared, or 64 bytes of text. At 0.1 µs
/// each that is 50 ms, for an expression that was made to take long.
pub const STEPS_LIMIT: usize = 500_000;

/// Steps of reading a text to its end, at [`TEXT_LIMIT_BYTES`](super::TEXT_LIMIT_BYTES).
const TEXT_STEPS: usize = super::TEXT_LIMIT_BYTES / 64;

/// Steps of comparing claims with claims: every value and every text in them.
const WHOLE_STEPS: usize = VALUES_LIMIT + super::TEXTS_LIMIT_BYTES / 64;

/// Name of the variable that holds the claims.
pub(super) const CLAIMS: &str = "claims";

/// Accumulator variable of a macro: no text can name it.
const RESULT: &str = "@result";

/// Longest words of the parser's that are passed on, in bytes.
const PROBLEM_LIMIT_BYTES: usize = 200;

/// An expression of known cost.
pub(super) struct Parsed {
    expression: IdedExpr,
    steps: usize,
    /// Set if the expression mentions only the measured boot.
    on_what_was_booted: bool,
    /// Mentions of the parts of a measured boot.
    boot: BTreeSet<BootMention>,
    /// Set if the expression selects `boot` from anything other than `claims.<kind>`, or by an index.
    boot_elsewhere: bool,
    /// The functions of the standard.
    functions: Arc<Env>,
}

impl fmt::Debug for Parsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parsed").field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl Parsed {
    /// Reads an expression that [`super::source::check`] has let through.
    pub(super) fn parse(source: &str) -> Result<Self, ConditionError> {
        let levels = u16::try_from(OPENINGS_LIMIT).unwrap_or(u16::MAX);
        let parser = PrattParser::new()
            .max_recursion_depth(levels)
            .max_expression_node_count(NODES_LIMIT);
        let expression = parser.parse(source).map_err(|errors| {
            let first = errors.errors.first();
            let (line, column) = first.map_or((0, 0), |error| error.pos);
            let problem: String = first.map_or("", |error| &error.msg).chars().take(PROBLEM_LIMIT_BYTES).collect();
            ConditionError::Syntax {
                line: usize::try_from(line).unwrap_or_default(),
                column: usize::try_from(column).unwrap_or_default(),
                problem,
            }
        })?;
        let mut walk = Walk {
            nodes_left: NODES_LIMIT,
            names: vec![CLAIMS.to_owned()],
        };
        let steps = walk.steps(&expression, DEPTH_LIMIT)?;
        if steps > STEPS_LIMIT {
            return Err(ConditionError::TooManySteps { found: steps });
        }
        let mut mentions = Mentions::default();
        mentions.visit(&expression);
        Ok(Self {
            on_what_was_booted: mentions.booted && !mentions.other_claims,
            boot: mentions.boot,
            boot_elsewhere: mentions.boot_elsewhere,
            expression,
            steps,
            functions: Arc::new(Env::stdlib()),
        })
    }

    pub(super) const fn expression(&self) -> &IdedExpr {
        &self.expression
    }

    pub(super) const fn is_on_what_was_booted(&self) -> bool {
        self.on_what_was_booted
    }

    pub(super) const fn boot(&self) -> &BTreeSet<BootMention> {
        &self.boot
    }

    pub(super) const fn asks_for_boot_elsewhere(&self) -> bool {
        self.boot_elsewhere
    }

    pub(super) const fn steps(&self) -> usize {
        self.steps
    }

    /// Returns whether the expression holds of claims that [`super::values::check`] has let through.
    pub(super) fn evaluate(&self, claims: &serde_json::Value) -> Result<bool, String> {
        let mut context = Context::with_env(Arc::clone(&self.functions));
        context.add_variable_from_value(CLAIMS, value(claims));
        match Value::resolve(&self.expression, &context) {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(_) => Err("the result is neither true nor false".to_owned()),
            Err(error) => Err(error.to_string().chars().take(PROBLEM_LIMIT_BYTES).collect()),
        }
    }
}

/// Whole numbers are `int` where they can be, so that they compare with those in an expression.
fn value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::Null,
        serde_json::Value::Bool(truth) => Value::Bool(*truth),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::Int(number),
            (None, Some(number)) => Value::UInt(number),
            (None, None) => number.as_f64().map_or(Value::Null, Value::Float),
        },
        serde_json::Value::String(text) => Value::String(Arc::new(text.clone())),
        serde_json::Value::Array(values) => Value::List(Arc::new(values.iter().map(value).collect())),
        serde_json::Value::Object(members) => {
            let members = members
                .iter()
                .map(|(name, member)| (Key::String(Arc::new(name.clone())), value(member)));
            Value::Map(cel::objects::Map {
                map: Arc::new(members.collect::<HashMap<_, _>>()),
            })
        }
    }
}

/// State of the walk through an expression.
struct Walk {
    nodes_left: usize,
    /// Names that are in scope here.
    names: Vec<String>,
}

impl Walk {
    /// The most steps that evaluating a node takes: a node that conditions may not have is refused.
    fn steps(&mut self, node: &IdedExpr, depth: usize) -> Result<usize, ConditionError> {
        let depth = depth.checked_sub(1).ok_or(ConditionError::TooDeep)?;
        self.nodes_left = self.nodes_left.checked_sub(1).ok_or(ConditionError::TooManyParts)?;
        let inner = match &node.expr {
            Expr::Literal(literal) => literal_steps(literal)?,
            Expr::Ident(name) if self.names.contains(name) => 1,
            Expr::Ident(name) => return Err(ConditionError::NoSuchName(name.clone())),
            // The library looks for the whole name, and for each shorter one: in each scope.
            Expr::Select(select) => self.steps(&select.operand, depth)?.saturating_add(self.names.len()),
            Expr::List(list) => {
                // What an element holds is copied.
                let plain = list.elements.iter().all(is_literal) && list.optional_indices.is_empty();
                if !plain {
                    return Err(ConditionError::NotAllowed(
                        "a list with elements other than plain values".to_owned(),
                    ));
                }
                self.all(&list.elements, depth)?
            }
            Expr::Call(call) => self.call(call, depth)?,
            Expr::Comprehension(comprehension) => self.comprehension(comprehension, depth)?,
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => {
                return Err(ConditionError::NotAllowed("{ }".to_owned()));
            }
        };
        Ok(inner.saturating_add(1))
    }

    fn all(&mut self, nodes: &[IdedExpr], depth: usize) -> Result<usize, ConditionError> {
        nodes
            .iter()
            .try_fold(0_usize, |sum, node| Ok(sum.saturating_add(self.steps(node, depth)?)))
    }

    fn call(&mut self, call: &CallExpr, depth: usize) -> Result<usize, ConditionError> {
        let arguments = self.all(&call.args, depth)?;
        let target = call.target.as_ref().map(|target| self.steps(target, depth)).transpose()?;
        let own = match (call.func_name.as_str(), target, call.args.as_slice()) {
            (operators::LOGICAL_AND | operators::LOGICAL_OR, None, [_, _])
            | (operators::LOGICAL_NOT | operators::NOT_STRICTLY_FALSE, None, [_])
            | (operators::CONDITIONAL, None, [_, _, _])
            | (operators::INDEX, None, [_, _]) => 1,
            (operators::EQUALS | operators::NOT_EQUALS, None, [left, right]) => comparison_steps(left, right),
            (operators::LESS | operators::LESS_EQUALS | operators::GREATER | operators::GREATER_EQUALS, None, [_, _]) => TEXT_STEPS,
            (operators::IN, None, [_, list]) => comparison_steps(list, list),
            // A macro counts.
            (operators::ADD, None, [counted, one]) if is_result(counted) && is_literal(one) => 1,
            ("size", None, [_]) | ("size", Some(_), []) => TEXT_STEPS,
            ("startsWith" | "endsWith" | "contains", Some(_), [part]) if is_literal(part) => TEXT_STEPS,
            (name, ..) => return Err(ConditionError::NotAllowed(format!("{name:?}"))),
        };
        Ok(own.saturating_add(arguments).saturating_add(target.unwrap_or_default()))
    }

    fn comprehension(&mut self, over: &ComprehensionExpr, depth: usize) -> Result<usize, ConditionError> {
        if makes_a_list(over) || over.iter_var2.is_some() {
            return Err(ConditionError::NotAllowed("map() or filter()".to_owned()));
        }
        if over.accu_var != RESULT || self.names.contains(&over.iter_var) {
            return Err(ConditionError::NotAllowed(format!("the name {:?} twice", over.iter_var)));
        }
        let before = self
            .steps(&over.iter_range, depth)?
            .saturating_add(self.steps(&over.accu_init, depth)?);
        let (turns, copied) = match &over.iter_range.expr {
            Expr::List(list) => (list.elements.len(), list.elements.len()),
            _ => (LIST_LIMIT, WHOLE_STEPS),
        };
        let known = self.names.len();
        self.names.extend([RESULT.to_owned(), over.iter_var.clone()]);
        let turn = self
            .steps(&over.loop_cond, depth)?
            .saturating_add(self.steps(&over.loop_step, depth)?);
        let after = self.steps(&over.result, depth)?;
        self.names.truncate(known);
        let turns = turns.saturating_mul(turn);
        Ok([before, copied, turns, after].into_iter().fold(0, usize::saturating_add))
    }
}

fn literal_steps(literal: &LiteralValue) -> Result<usize, ConditionError> {
    match literal {
        LiteralValue::Boolean(_) | LiteralValue::Int(_) | LiteralValue::UInt(_) | LiteralValue::Null | LiteralValue::String(_) => Ok(1),
        LiteralValue::Bytes(_) | LiteralValue::Double(_) => Err(ConditionError::NotAllowed("bytes, or a fraction".to_owned())),
    }
}

fn is_literal(node: &IdedExpr) -> bool {
    matches!(node.expr, Expr::Literal(_))
}

fn is_result(node: &IdedExpr) -> bool {
    matches!(&node.expr, Expr::Ident(name) if name == RESULT)
}

/// A comparison ends where one side does.
fn comparison_steps(left: &IdedExpr, right: &IdedExpr) -> usize {
    let plain = |node: &IdedExpr| match &node.expr {
        Expr::Literal(_) => Some(TEXT_STEPS),
        // Its elements are plain: each is compared with one value.
        Expr::List(list) => Some(list.elements.len().saturating_mul(TEXT_STEPS)),
        _ if is_result(node) => Some(1),
        _ => None,
    };
    plain(left).or_else(|| plain(right)).unwrap_or(WHOLE_STEPS)
}

fn makes_a_list(over: &ComprehensionExpr) -> bool {
    !matches!(over.accu_init.expr, Expr::Literal(_))
}

/// Claims that an expression mentions.
#[derive(Default)]
struct Mentions {
    /// Set if the expression mentions the measured boot.
    booted: bool,
    /// Set if the expression mentions any other claim.
    other_claims: bool,
    boot: BTreeSet<BootMention>,
    boot_elsewhere: bool,
}

impl Mentions {
    fn visit(&mut self, node: &IdedExpr) {
        match &node.expr {
            Expr::Ident(name) if name == CLAIMS => self.other_claims = true,
            Expr::Select(select) if self.is_of_a_boot(select) => {}
            Expr::Select(select) if is_booted(&select.operand, &select.field) => self.booted = true,
            Expr::Select(select) => {
                self.boot_elsewhere |= select.field == BOOT;
                self.visit(&select.operand);
            }
            Expr::List(list) => list.elements.iter().for_each(|element| self.visit(element)),
            Expr::Call(call) => {
                self.boot_elsewhere |= call.func_name == operators::INDEX && call.args.get(1).is_some_and(says_boot);
                call.args.iter().chain(call.target.as_deref()).for_each(|part| self.visit(part));
            }
            Expr::Comprehension(over) => {
                let parts = [&over.iter_range, &over.accu_init, &over.loop_cond, &over.loop_step, &over.result];
                parts.into_iter().for_each(|part| self.visit(part));
            }
            Expr::Ident(_) | Expr::Literal(_) => {}
            // Conditions have none.
            Expr::Map(_) | Expr::Struct(_) | Expr::Unspecified => self.other_claims = true,
        }
    }

    /// Takes note of `claims.<kind>.boot` and of `claims.<kind>.boot.<part>`.
    fn is_of_a_boot(&mut self, select: &SelectExpr) -> bool {
        let (found, part) = match (kind(&select.operand), &select.operand.expr) {
            (Some(kind), _) if select.field == BOOT => (kind, None),
            (None, Expr::Select(boot)) if boot.field == BOOT => match kind(&boot.operand) {
                Some(kind) => (kind, Some(select.field.clone())),
                None => return false,
            },
            _ => return false,
        };
        match is_what_was_booted(found, BOOT) {
            true => self.booted = true,
            false => self.other_claims = true,
        }
        let (kind, is_asked_for) = (found.to_owned(), select.test);
        self.boot.insert(BootMention { kind, part, is_asked_for });
        true
    }
}

/// Returns whether the node is the literal `'boot'`.
fn says_boot(node: &IdedExpr) -> bool {
    matches!(&node.expr, Expr::Literal(LiteralValue::String(text)) if text.inner() == BOOT)
}

/// Returns whether `claims.<kind>.<field>` belongs to the measured boot; `operand` is `claims.<kind>`.
fn is_booted(operand: &IdedExpr, field: &str) -> bool {
    kind(operand).is_some_and(|kind| is_what_was_booted(kind, field))
}

/// The `<kind>` of `claims.<kind>`.
fn kind(node: &IdedExpr) -> Option<&str> {
    let Expr::Select(kind) = &node.expr else { return None };
    matches!(&kind.operand.expr, Expr::Ident(name) if name == CLAIMS).then_some(&kind.field)
}
