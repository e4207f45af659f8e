"""What the rules of one family share: figures of a case, and the thresholds that two or more rules
use. A family knows no rule."""
