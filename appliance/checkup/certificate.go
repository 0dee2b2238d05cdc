package checkup

// Certificate is the Check of findings about the certificate of the API.
const Certificate = "certificate"
