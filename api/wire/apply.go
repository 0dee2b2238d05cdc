package wire

// What may become of an object that is applied.
const (
	Created    = "created"
	Configured = "configured"
	Unchanged  = "unchanged"
	Refused    = "refused"
)

// Applied is the result of applying one object of a batch: a line of the answer to
// /svcctl/v1/apply.
type Applied struct {
	Result string `json:"result"` // created, configured, unchanged, removed or refused
	// Object is the stored object, or with a dry run the object that would be stored;
	// absent if it is refused.
	Object map[string]any `json:"object,omitempty"`
	// Status is the reason of a refusal.
	Status   *Failure `json:"status,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}
