package object

import (
	"fmt"
	"slices"
)

// LabelSelector is meta/v1 LabelSelector.
type LabelSelector struct {
	MatchLabels      map[string]string          `json:"matchLabels,omitempty"`
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelectorRequirement is meta/v1 LabelSelectorRequirement.
type LabelSelectorRequirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// The operators of a LabelSelectorRequirement.
const (
	selectIn           = "In"
	selectNotIn        = "NotIn"
	selectExists       = "Exists"
	selectDoesNotExist = "DoesNotExist"
)

// Matches reports whether labels meet all requirements; a selector without any matches everything.
func (s *LabelSelector) Matches(labels map[string]string) bool {
	for key, value := range s.MatchLabels {
		if has, is := labels[key]; !is || has != value {
			return false
		}
	}
	for _, r := range s.MatchExpressions {
		value, is := labels[r.Key]
		listed := is && slices.Contains(r.Values, value)
		if r.Operator == selectIn && !listed || r.Operator == selectNotIn && listed ||
			r.Operator == selectExists && !is || r.Operator == selectDoesNotExist && is {
			return false
		}
	}
	return true
}

// validateSelectors checks lists of selectors. Their texts name the value, as the field may be any of the lists.
func validateSelectors(at path, lists ...[]LabelSelector) Errors {
	var errs Errors
	for _, s := range slices.Concat(lists...) {
		for _, r := range s.MatchExpressions {
			in := at.child("matchExpressions")
			switch r.Operator {
			case selectIn, selectNotIn:
				if len(r.Values) == 0 {
					errs = append(errs, required(in.child("values"), fmt.Sprintf("operator %s of key %s needs values", r.Operator, r.Key))...)
				}
			case selectExists, selectDoesNotExist:
				if len(r.Values) > 0 {
					errs = append(errs, forbidden(in.child("values"), fmt.Sprintf("operator %s of key %s takes no values", r.Operator, r.Key))...)
				}
			default:
				errs = append(errs, notSupported(in.child("operator"), r.Operator, []string{selectIn, selectNotIn, selectExists, selectDoesNotExist})...)
			}
		}
	}
	return errs
}
