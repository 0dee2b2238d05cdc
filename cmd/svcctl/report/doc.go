// Package report has the problems of manifests in the forms that people, editors, CI systems and code
// hosting sites read: a line each, JSON, JUnit and SARIF. It computes text from values.
//
//	r := report.Of(files, problems)
//	text, err := r.SARIF(version)
package report
