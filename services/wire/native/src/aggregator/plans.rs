//! Plans as messages: read by an aggregator. As moe.wire.plans.

use crate::api::aggregator::{MissingPolicy, Plan as PlanMessage, PlannedPart as PlannedMessage};
use crate::combiner::{Key, Plan, PlannedPart};
use crate::tensors::{dtype_of, Rows};

/// The plan in a message; whether it makes sense is the combiner's. The error names the field.
pub fn read_plan(message: PlanMessage, now: f64) -> Result<Plan, String> {
    let policy = match MissingPolicy::try_from(message.policy) {
        Ok(policy) if policy != MissingPolicy::Unspecified => policy,
        _ => {
            return Err(format!(
                "plan.policy: got {}, want wait, renormalise or fail",
                message.policy
            ))
        }
    };
    Ok(Plan {
        key: Key {
            call_id: message.call_id,
            layer: message.layer,
        },
        tokens: message.tokens as usize,
        hidden: message.hidden as usize,
        dtype: dtype_of(message.dtype, "plan.dtype")?,
        policy,
        deadline: (message.timeout_us > 0).then(|| now + message.timeout_us as f64 / 1e6),
        parts: message
            .parts
            .into_iter()
            .map(read_part)
            .collect::<Result<_, _>>()?,
    })
}

fn read_part(message: PlannedMessage) -> Result<PlannedPart, String> {
    let name = format!("plan.parts[part={}]", message.part);
    let field = format!("{name}.token_index");
    let token_index = Rows::read(message.token_index, &field)?.int32(&field)?;
    let field = format!("{name}.row_weights");
    let row_weights = match message.row_weights {
        None => None,
        weights => Some(Rows::read(weights, &field)?.float32(&field)?),
    };
    Ok(PlannedPart {
        part: message.part,
        token_index,
        row_weights,
    })
}
