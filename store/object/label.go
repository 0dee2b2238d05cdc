package object

// LabelKeyProblems says what is wrong with a text as the key of a label ("name" or
// "example.com/name"), in Kubernetes' words; nothing when it is right.
func LabelKeyProblems(key string) []string { return labelKeyProblems(key) }

// LabelValueProblems says what is wrong with a text as the value of a label.
func LabelValueProblems(value string) []string { return labelValueProblems(value) }
