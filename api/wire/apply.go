package wire

// What may become of an object that is applied.
const (
	Created    = "created"
	Configured = "configured"
	Unchanged  = "unchanged"
	Refused    = "refused"
)

// Applied is what became of one object of a batch: one line of the answer to
// /svcctl/v1/apply.
type Applied struct {
	Result string `json:"result"` // created, configured, unchanged or refused
	// Object is what is stored, or would be; left out when it is refused.
	Object map[string]any `json:"object,omitempty"`
	// Status says why it is refused.
	Status   *Failure `json:"status,omitempty"`
	Warnings []string `json:"warnings,omitempty"`
}
