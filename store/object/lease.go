package object

// Lease is coordination.k8s.io/v1 Lease: who does something that only one may do.
type Lease struct {
	TypeMeta
	Metadata ObjectMeta `json:"metadata"`
	Spec     LeaseSpec  `json:"spec,omitzero"`
}

// LeaseSpec is coordination.k8s.io/v1 LeaseSpec; the duration is in seconds.
type LeaseSpec struct {
	HolderIdentity       *string    `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds *int32     `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          *MicroTime `json:"acquireTime,omitempty"`
	RenewTime            *MicroTime `json:"renewTime,omitempty"`
	LeaseTransitions     *int32     `json:"leaseTransitions,omitempty"`
	Strategy             *string    `json:"strategy,omitempty"`
	PreferredHolder      *string    `json:"preferredHolder,omitempty"`
}

func (o *Lease) GetTypeMeta() *TypeMeta { return &o.TypeMeta }
func (o *Lease) GetMeta() *ObjectMeta   { return &o.Metadata }

// DeepCopy implements Object.
func (o *Lease) DeepCopy() Object { return deepCopy(o) }

func validateLease(o *Lease) Errors {
	at := specPath
	var errs Errors
	if seconds := o.Spec.LeaseDurationSeconds; seconds != nil && *seconds <= 0 {
		errs = append(errs, invalid(at.child("leaseDurationSeconds"), *seconds, "must be greater than 0")...)
	}
	if transitions := o.Spec.LeaseTransitions; transitions != nil && *transitions < 0 {
		errs = append(errs, invalid(at.child("leaseTransitions"), *transitions, "must be greater than or equal to 0")...)
	}
	return errs
}
