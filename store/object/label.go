package object

// LabelKeyProblems returns what is wrong with a label key ("name" or "example.com/name"), in
// Kubernetes' words; nothing when it is valid.
func LabelKeyProblems(key string) []string { return labelKeyProblems(key) }

// LabelValueProblems returns what is wrong with a label value; nothing when it is valid.
func LabelValueProblems(value string) []string { return labelValueProblems(value) }
